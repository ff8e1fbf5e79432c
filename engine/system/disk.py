"""The real disk: directories, log files and locks over Linux system calls.

Invariants:

- A directory is opened once and everything in it is reached through that descriptor, so that a
  rename of a parent cannot send half of the files elsewhere.  Symbolic links inside are refused.
- Threads may share a directory: nothing is kept in it but the descriptor.
- Directories are made with mode 0700, files with 0600; in a directory that its owner has let the
  group or others read, new files are for them to read, too.
- ``write`` writes all bytes or raises; ``sync`` is ``fdatasync``, which covers the size, and on
  Linux what a mapping of the file dirtied too.
- Errors leave as ``OSError``; the engine translates them.
- The child of a fork holds no lock: the descriptor, which keeps it alive, is closed at once.

Left out: which files there are (``wal``, ``files.manifest``), retries (there are none: after a
failed sync nobody can tell what is on the disk), and every file that LMDB keeps for itself.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import weakref

from ...wal.ports import Directory, LogFile, ReadableFile
from .environment import LockHandle
from .forks import no_fork

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
READERS = 0o044
"""Group and others, reading: whom the owner of a store may let in with `chmod -R g+rX`."""

_NETWORK = ["9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre"]
_NETWORK += ["ncpfs", "nfs", "nfs4", "orangefs", "smb3", "smbfs"]
_FUSE = ["ceph-fuse", "cephfs", "curlftpfs", "davfs2", "gcsfuse", "glusterfs", "goofys", "juicefs"]
_FUSE += ["mount-s3", "mountpoint-s3", "rclone", "s3fs", "smbnetfs", "sshfs", "unionfs-smb"]
NETWORK_FILE_SYSTEMS = frozenset([*_NETWORK, *(f"fuse.{name}" for name in _FUSE)])
"""Where a lock, a mapping or a sync may mean less than on a local disk."""

# What closed objects hold: no file ever has it, so that each call answers EBADF, where -1 would be
# a ValueError for some.
_CLOSED = (1 << 31) - 1

# A FIFO would block at open for ever without O_NONBLOCK; on regular files it has no effect.
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class RealFile:
    """An open regular file, written with ``pwrite``."""

    __slots__ = ("_fd", "name")

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end of the file."""
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < length:
            data = os.pread(self._fd, length - got, offset + got)
            if not data:
                break
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self._fd).st_size

    def write(self, offset: int, data: bytes) -> None:
        """Write all of ``data`` at ``offset``, growing the file if needed."""
        written = os.pwrite(self._fd, data, offset)
        if written != len(data):
            self._write_rest(offset, data, written)

    def _write_rest(self, offset: int, data: bytes, written: int) -> None:
        view = memoryview(data)
        while written < len(view):
            count = os.pwrite(self._fd, view[written:], offset + written)
            if count == 0:
                raise OSError(errno.EIO, "the disk took no bytes", self.name)
            written += count

    def sync(self) -> None:
        """Make every earlier write of this file durable (fdatasync)."""
        os.fdatasync(self._fd)

    @property
    def mapping(self) -> mmap.mmap | None:
        """A plain file has no mapping."""
        return None

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)


class MappedFile(RealFile):
    """An open regular file, written through a mapping if it has bytes already.

    A copy into the mapping costs a quarter of a system call, but a sync of what it dirtied costs
    more: this is for stores that sync rarely.  Writes beyond the end grow the file with
    ``pwrite`` and map it anew, so that one thread at a time may write.  A disk that fails to read
    a page, or a file that somebody else cuts, ends the process with SIGBUS, as with every mapping.
    """

    __slots__ = ("_map", "_mapped")

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd, name)
        self._map: mmap.mmap | None = None
        self._mapped = 0
        size = self.size()
        if size:
            # A store into a hole on a full disk is a SIGBUS: the space is taken now, or refused.
            os.posix_fallocate(fd, 0, size)
        self._remap()

    @property
    def mapping(self) -> mmap.mmap | None:
        """The mapping, as long as the file does not grow, is not cut and not closed."""
        return self._map

    def write(self, offset: int, data: bytes) -> None:
        """Write all of ``data`` at ``offset``, growing the file if needed."""
        end = offset + len(data)
        if end > self._mapped or self._map is None:
            super().write(offset, data)
            self._remap()
        else:
            self._map[offset:end] = data

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        self._unmap()
        super().truncate(size)
        self._remap()

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._unmap()
        super().close()

    def _remap(self) -> None:
        self._unmap()
        size = self.size()
        if size:
            self._map = mmap.mmap(self._fd, size)
            self._mapped = size

    def _unmap(self) -> None:
        mapping, self._map = self._map, None
        self._mapped = 0
        if mapping is not None:
            mapping.close()


class RealDirectory:
    """An open directory; its descriptor is closed with the last reference, or by ``close``."""

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        self.path = path
        self._read_only = read_only
        self._fd = os.open(path, _LIST)
        self._closer = weakref.finalize(self, os.close, self._fd)
        # A store that is closed at the end of the interpreter still needs it.
        self._closer.atexit = False

    def __repr__(self) -> str:
        return f"<RealDirectory {self.path}>"

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""
        # A descriptor of its own: how far a directory has been listed belongs to the open
        # directory, so two threads that list through one would share out its entries.
        fd = os.open(".", _LIST, dir_fd=self._fd)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def open_read(self, name: str) -> ReadableFile:
        """Open a regular file for reading."""
        return RealFile(self._open(name, os.O_RDONLY), os.path.join(self.path, name))

    def create(self, name: str, *, mapped: bool = False) -> LogFile:
        """Create a file that must not exist yet, and open it."""
        return self._log_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mapped)

    def open_write(self, name: str, *, mapped: bool = False) -> LogFile:
        """Open an existing regular file for reading and writing."""
        return self._log_file(name, os.O_RDWR, mapped)

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing ``new`` if it exists."""
        self._check_writable(old)
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def unlink(self, name: str) -> None:
        """Remove a file."""
        self._check_writable(name)
        os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        """Make names that were created, renamed or removed durable."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the directory (its open files stay open); closing twice is fine."""
        self._closer()
        self._fd = _CLOSED

    def _log_file(self, name: str, flags: int, mapped: bool) -> LogFile:
        self._check_writable(name)
        fd = self._open(name, flags)
        path = os.path.join(self.path, name)
        if not mapped:
            return RealFile(fd, path)
        try:
            return MappedFile(fd, path)
        except BaseException:
            os.close(fd)
            raise

    def _open(self, name: str, flags: int) -> int:
        fd = os.open(name, flags | _OPEN, FILE_MODE, dir_fd=self._fd)
        readers = os.fstat(self._fd).st_mode & READERS if flags & os.O_CREAT else 0
        if readers:  # not by the mode of `open`, from which the umask takes them
            os.fchmod(fd, FILE_MODE | readers)
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(code, "not a regular file", os.path.join(self.path, name))
        return fd

    def _check_writable(self, name: str) -> None:
        if self._read_only:
            path = os.path.join(self.path, name)
            raise OSError(errno.EROFS, "the directory was opened for reading only", path)


class FileLock:
    """A ``flock`` on a file: gone with the process, however that ends."""

    _fd = _CLOSED

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _locks.add(self)

    def __del__(self) -> None:
        """Give up the lock of an open that was interrupted before anybody had it."""
        self.release()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def write(self, text: bytes) -> None:
        """Replace the content of the locked file."""
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))

    def release(self) -> None:
        """Give the lock up; releasing twice is fine."""
        if self._fd != _CLOSED:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # first: an interrupt behind it locks nobody out
        self.forked()

    def forked(self) -> None:
        """In the child of a fork: close the descriptor, without a word to the parent's lock.

        Parent and child share the lock: LOCK_UN would take it from the parent, and a descriptor
        that is left open would keep it beyond the parent's end.
        """
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)


_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_locks):
        lock.forked()


os.register_at_fork(after_in_child=_after_fork)


class RealDisk:
    """This machine's file system."""

    def kind(self, path: str) -> str | None:
        """Return ``directory``, ``file``, ``other``, or None if nothing is there."""
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return "other"
            raise
        if stat.S_ISDIR(mode):
            return "directory"
        return "file" if stat.S_ISREG(mode) else "other"

    def make_directory(self, path: str) -> None:
        """Create a directory (mode 0700) that may exist already, durably."""
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
        # Also if it existed: the process that made it may have died before this line.
        parent = RealDirectory(os.path.dirname(os.path.abspath(path)))
        try:
            parent.sync()
        finally:
            parent.close()

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def directory(self, path: str, *, read_only: bool = False) -> Directory:
        """Open an existing directory."""
        return RealDirectory(path, read_only=read_only)

    def lock(self, path: str, *, shared: bool = False) -> LockHandle:
        """Create the file if needed and lock it; ``BlockingIOError`` if it is locked."""
        operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        while True:
            with no_fork:
                lock = FileLock(_open_lock(path, shared))
                try:
                    fcntl.flock(lock.fileno(), operation)
                    # Whoever cleans up may have removed the file between the two calls: a lock on
                    # a file without a name excludes nobody.
                    if _is_named(lock.fileno(), path):
                        return lock
                except BaseException:
                    lock.release()
                    raise
                lock.release()

    def network_file_system(self, path: str) -> str | None:
        """Return the name of the network file system that holds ``path``, or None."""
        device = _device_of(os.path.abspath(path))
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as stream:
                name = file_system_of(stream.read(), os.major(device), os.minor(device))
        except OSError:
            return None
        return name if name in NETWORK_FILE_SYSTEMS else None


def file_system_of(mountinfo: str, major: int, minor: int) -> str | None:
    """Return the file system type of a device, from the text of ``/proc/self/mountinfo``."""
    for line in mountinfo.splitlines():
        head, dash, tail = line.partition(" - ")
        fields = head.split()
        if dash and len(fields) > 2 and fields[2] == f"{major}:{minor}":
            return tail.split(" ", 1)[0]
    return None


def _device_of(path: str) -> int:
    while True:
        try:
            return os.stat(path).st_dev
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)


def _open_lock(path: str, shared: bool) -> int:
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, FILE_MODE)
    except OSError as error:
        # A shared lock can be taken even if nothing may be written: a read-only medium.
        if not shared or error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_named(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
