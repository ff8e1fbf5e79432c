// Load on etcd by its own client, as quick as that goes: a program that etcd.py builds and runs.
//
// The clients are goroutines; -share of them have a connection together.  What was done is told as
// JSON on standard output: how many operations in which time, how many failed, the CPU that this
// process and those of -pids took meanwhile, and with -each when every operation began and ended.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	records    = 10000
	keyBytes   = 16
	valueBytes = 100
	patience   = 10 * time.Second
)

type put struct{ began, ended time.Duration }

type told struct {
	Done    int       `json:"done"`
	Failed  int       `json:"failed"`
	Seconds float64   `json:"seconds"`
	Begun   float64   `json:"begun"`
	Client  float64   `json:"client_cpu"`
	Members float64   `json:"members_cpu"`
	Began   []float64 `json:"began"`
	Ended   []float64 `json:"ended"`
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// cpu returns the seconds that a process has computed for so far.
func cpu(pid int) float64 {
	var spent syscall.Timespec
	clock := uintptr(int32(^pid)<<3 | 2)
	_, _, number := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&spent)), 0)
	if number != 0 {
		return 0 // it has ended
	}
	return float64(spent.Nano()) / 1e9
}

func all(pids []int) float64 {
	sum := 0.0
	for _, pid := range pids {
		sum += cpu(pid)
	}
	return sum
}

func main() {
	endpoints := flag.String("endpoints", "", "addresses, with commas between")
	operation := flag.String("operation", "put", "put or get")
	clients := flag.Int("clients", 1, "how many at a time")
	share := flag.Int("share", 8, "how many have a connection together")
	seconds := flag.Float64("seconds", 1, "how long")
	limit := flag.Duration("limit", patience, "how long an operation may take")
	processes := flag.String("pids", "", "whose CPU is told, with commas between")
	each := flag.Bool("each", false, "tell of every operation")
	flag.Parse()

	var pids []int
	for _, word := range strings.Split(*processes, ",") {
		if pid, err := strconv.Atoi(word); err == nil {
			pids = append(pids, pid)
		}
	}
	var connections []*clientv3.Client
	for at := 0; at < *clients; at += *share {
		connection, err := clientv3.New(clientv3.Config{
			Endpoints:   strings.Split(*endpoints, ","),
			DialTimeout: patience,
			Logger:      zap.NewNop(),
		})
		check(err)
		connections = append(connections, connection)
	}
	random := rand.New(rand.NewSource(1))
	pairs := make([][2]string, records)
	for at := range pairs {
		both := make([]byte, keyBytes+valueBytes)
		random.Read(both)
		pairs[at] = [2]string{string(both[:keyBytes]), string(both[keyBytes:])}
	}
	one := func(connection *clientv3.Client, at int) error {
		until, cancel := context.WithTimeout(context.Background(), *limit)
		defer cancel()
		pair := pairs[at%records]
		var err error
		if *operation == "put" {
			_, err = connection.Put(until, pair[0], pair[1])
		} else {
			_, err = connection.Get(until, pair[0])
		}
		return err
	}
	for at, connection := range connections {
		check(one(connection, at))
	}

	length := time.Duration(*seconds * float64(time.Second))
	done := make([][]put, *clients)
	failed := make([]int, *clients)
	here, there := cpu(os.Getpid()), all(pids)
	begun := time.Now()
	var working sync.WaitGroup
	for client := range done {
		working.Add(1)
		go func() {
			defer working.Done()
			connection := connections[client / *share]
			for at := client; time.Since(begun) < length; at += *clients {
				began := time.Since(begun)
				if one(connection, at) != nil {
					failed[client]++
				} else {
					done[client] = append(done[client], put{began, time.Since(begun)})
				}
			}
		}()
	}
	working.Wait()
	answer := told{
		Seconds: time.Since(begun).Seconds(),
		Begun:   float64(begun.UnixNano()) / 1e9,
		Client:  cpu(os.Getpid()) - here,
		Members: all(pids) - there,
		Began:   []float64{},
		Ended:   []float64{},
	}
	for client, puts := range done {
		answer.Failed += failed[client]
		answer.Done += len(puts)
		for _, each_put := range puts {
			if *each {
				answer.Began = append(answer.Began, each_put.began.Seconds())
				answer.Ended = append(answer.Ended, each_put.ended.Seconds())
			}
		}
	}
	check(json.NewEncoder(os.Stdout).Encode(answer))
}
