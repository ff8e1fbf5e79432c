// Load on etcd by its own client, as quick as that goes: a program that etcd.py builds and runs.
//
// The clients are goroutines; -share of them have a connection together.  What was done is told as
// JSON on standard output: how many operations in which time, how many failed, how many attempts at
// transactions were made again, the CPU that this process and those of -pids took meanwhile, and with
// -each when every operation began and ended.  The keys of transactions are those of the file -draws.
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
	Again   int       `json:"again"`
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

// drawn returns the keys of each transaction, which are one behind the other in a file.
func drawn(path string, keys int) [][]string {
	all, err := os.ReadFile(path)
	check(err)
	var draws [][]string
	for at := 0; at < len(all); at += keys * keyBytes {
		draw := make([]string, keys)
		for number := range draw {
			from := at + number*keyBytes
			draw[number] = string(all[from : from+keyBytes])
		}
		draws = append(draws, draw)
	}
	return draws
}

// transact reads keys and sets them all, until nobody came between; it returns how often one did.
func transact(until context.Context, connection *clientv3.Client, keys []string, value string) (int, error) {
	reads, writes := make([]clientv3.Op, len(keys)), make([]clientv3.Op, len(keys))
	for number, key := range keys {
		reads[number], writes[number] = clientv3.OpGet(key), clientv3.OpPut(key, value)
	}
	compares := make([]clientv3.Cmp, len(keys))
	for again := 0; ; again++ {
		found, err := connection.Txn(until).Then(reads...).Commit()
		if err != nil {
			return again, err
		}
		for number, key := range keys {
			revision := found.Responses[number].GetResponseRange().Kvs[0].ModRevision
			compares[number] = clientv3.Compare(clientv3.ModRevision(key), "=", revision)
		}
		answer, err := connection.Txn(until).If(compares...).Then(writes...).Commit()
		if err != nil || answer.Succeeded {
			return again, err
		}
	}
}

func main() {
	endpoints := flag.String("endpoints", "", "addresses, with commas between")
	operation := flag.String("operation", "put", "put, get or transaction")
	clients := flag.Int("clients", 1, "how many at a time")
	share := flag.Int("share", 8, "how many have a connection together")
	seconds := flag.Float64("seconds", 1, "how long")
	limit := flag.Duration("limit", patience, "how long an operation may take")
	processes := flag.String("pids", "", "whose CPU is told, with commas between")
	each := flag.Bool("each", false, "tell of every operation")
	file := flag.String("draws", "", "what has the keys of transactions")
	keys := flag.Int("keys", 1, "of a transaction")
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
	var draws [][]string
	if *operation == "transaction" {
		draws = drawn(*file, *keys)
	}
	one := func(connection *clientv3.Client, at int) (int, error) {
		until, cancel := context.WithTimeout(context.Background(), *limit)
		defer cancel()
		pair := pairs[at%records]
		var err error
		switch *operation {
		case "transaction":
			return transact(until, connection, draws[at%len(draws)], pair[1])
		case "put":
			_, err = connection.Put(until, pair[0], pair[1])
		default:
			_, err = connection.Get(until, pair[0])
		}
		return 0, err
	}
	for at, connection := range connections {
		_, err := one(connection, at)
		check(err)
	}

	length := time.Duration(*seconds * float64(time.Second))
	done := make([][]put, *clients)
	failed, again := make([]int, *clients), make([]int, *clients)
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
				attempts, err := one(connection, at)
				again[client] += attempts
				if err != nil {
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
		answer.Again += again[client]
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
