package lifecycle

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// readDescriptors looks at the descriptors of each process, and of its threads that have others
// of their own. With here the PIDs are those of this process too.
func (s *scanner) readDescriptors(here bool) {
	before := ""
	for _, thread := range s.threads {
		process, tid := filepath.Dir(filepath.Dir(thread)), filepath.Base(thread)
		pid := filepath.Base(process)
		if before == process && here && sameFiles(pid, tid) {
			continue
		}
		before = process
		fds, err := names(thread + "/fd")
		s.blind("descriptors of process "+pid, err)
		for _, fd := range fds {
			path := thread + "/fd/" + fd
			link, err := os.Readlink(path)
			if _, hidden := s.hidden[thread]; hidden && pid == "1" {
				break // the first process alone keeps no container's namespace
			}
			s.blind(path, err)
			if inode, ok := inodeIn(link, "net"); ok {
				s.hit(inode, path)
			} else if strings.HasPrefix(link, "mnt:[") {
				s.readMountsOf(path)
			} else if strings.HasPrefix(link, "/") && s.ofMount(path) {
				continue
			} else if inode, ok := inodeIn(link, "socket"); ok && !s.sockets[inode] || link == "/dev/net/tun" {
				s.readSocket(here, pid, tid, fd)
			}
		}
	}
}

// ofMount looks at a descriptor that was opened by a path, and reports whether it is of a namespace:
// the link of one that was opened where it is mounted has that path, and "/" after the unmount.
func (s *scanner) ofMount(path string) bool {
	var st unix.Statx_t // which waits for no server of files
	if unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, 0, &st) != nil || unix.Mkdev(st.Dev_major, st.Dev_minor) != s.nsfs {
		return false // or closed meanwhile
	}
	fd, err := s.open(path, 0)
	if err != nil {
		s.blind(path, err)
		return true
	}
	inode := inodeOf(fd)
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	switch {
	case err != nil:
		s.blind(path, err)
	case kind == unix.CLONE_NEWNET && s.wanted[inode]:
		s.add(inode, identity(fd))
	case kind == unix.CLONE_NEWNS && !s.mounts[inode]:
		s.mounts[inode] = true
		s.enterMounts(fd)
		return true
	}
	_ = unix.Close(fd)
	return true
}

// sameFiles reports whether two threads share their descriptors.
func sameFiles(pid, tid string) bool {
	const files = 2 // KCMP_FILES, linux/kcmp.h
	a, errA := strconv.Atoi(pid)
	b, errB := strconv.Atoi(tid)
	if errA != nil || errB != nil || a == b {
		return false
	}
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), files, 0, 0, 0)
	return errno == 0 && order == 0
}

// pidfdThread makes a descriptor of a thread (Linux 6.9, linux/pidfd.h). Without it the sockets of
// a thread with descriptors of its own cannot be looked at.
const pidfdThread = unix.O_EXCL

// readSocket looks at the network namespace of a socket or of a tun device.
func (s *scanner) readSocket(here bool, pid, tid, fd string) {
	if !here {
		s.blind("sockets of process "+pid, errors.New("its PID is another one here"))
		return
	}
	thread, _ := strconv.Atoi(tid)
	number, _ := strconv.Atoi(fd)
	flags := 0
	if pid != tid {
		flags = pidfdThread
	}
	pidfd, err := unix.PidfdOpen(thread, flags)
	if err != nil {
		s.blind("process "+tid, err)
		return
	}
	defer unix.Close(pidfd) //nolint:errcheck // nothing was written
	socket, err := unix.PidfdGetfd(pidfd, number, 0)
	if errors.Is(err, unix.EBADF) {
		return // closed meanwhile
	}
	if err != nil {
		s.blind("socket of process "+tid, err)
		return
	}
	defer unix.Close(socket) //nolint:errcheck // nothing was written
	netfd, err := unix.IoctlRetInt(socket, unix.SIOCGSKNS)
	if err != nil {
		s.blind("network namespace of a socket of process "+tid, err)
		return
	}
	defer unix.Close(netfd) //nolint:errcheck // nothing was written
	var of unix.Stat_t
	if unix.Fstat(socket, &of) == nil && of.Mode&unix.S_IFMT == unix.S_IFSOCK {
		s.sockets[of.Ino] = true
	}
	if inode := inodeOf(netfd); s.wanted[inode] {
		s.add(inode, identity(netfd))
	}
}
