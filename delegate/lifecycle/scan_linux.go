package lifecycle

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/inroot"
	"github.com/metacni/metacni/internal/thread"
)

// A scanner looks for network namespaces in what holds them on this machine: threads, mounts,
// descriptors and sockets. It reads the links of threads first, and each of the others only for
// namespaces that are still missing.
type scanner struct {
	scanned

	proc    string // a proc file system that has all processes
	procFD  int    // a descriptor of it
	nsfs    uint64 // the device of namespaces
	wanted  map[uint64]bool
	threads []string          // directories of threads in proc, those of a process after each other
	mounts  map[uint64]bool   // mount namespaces that were looked at
	sockets map[uint64]bool   // sockets that were looked at
	seen    map[uint64]string // a thread of each network namespace
	hidden  map[string]error  // threads whose links cannot be read, and why
}

func (k kernel) scan(root string, wanted []netns) scanned {
	s := &scanner{
		scanned: scanned{found: make(map[uint64][]netns)}, wanted: make(map[uint64]bool), mounts: make(map[uint64]bool),
		sockets: make(map[uint64]bool), seen: make(map[uint64]string), hidden: make(map[string]error), nsfs: k.identify("", ownNetNS).Dev,
	}
	for _, n := range wanted {
		s.wanted[n.Inode] = true
	}
	if !may(unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE) {
		s.unseen = "it takes CAP_SYS_ADMIN and CAP_SYS_PTRACE outside of user namespaces to see all processes"
		return s.scanned
	}
	for _, root := range []string{"", root} {
		self, _ := linkTo(root, "/proc/self/ns/pid", "pid")
		first, _ := linkTo(root, "/proc/1/ns/pid", "pid")
		if self == initialPID || first == initialPID {
			s.unseen = "the proc file system cannot be opened"
			_ = inroot.With(root, "/proc", func(dir string) (err error) {
				s.proc = dir
				if s.procFD, err = unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
					return err
				}
				defer unix.Close(s.procFD) //nolint:errcheck // nothing was written
				s.unseen = ""
				s.look(self == initialPID)
				return nil
			})
			return s.scanned
		}
	}
	s.unseen = "this process sees only the processes of its PID namespace"
	return s.scanned
}

// look looks everywhere, until all wanted namespaces are found. With here the PIDs in s.proc are those
// of this process too.
func (s *scanner) look(here bool) {
	for _, read := range []func(){s.readLinks, s.readHidden, s.readMounts, func() { s.readDescriptors(here) }} {
		if read(); len(s.found) == len(s.wanted) {
			return
		}
	}
}

// blind notes that something could not be looked at, unless it has ended.
func (s *scanner) blind(what string, err error) {
	if err != nil && s.unseen == "" && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) {
		s.unseen = fmt.Sprintf("%s: %v", what, err)
	}
}

// hit notes the namespace at path if it is wanted and not identified yet: while a namespace lives, no
// other one has its inode, which is known already. What has ended since has it no more.
func (s *scanner) hit(inode uint64, path string) {
	if !s.wanted[inode] || slices.ContainsFunc(s.found[inode], func(n netns) bool { return n.Number != "" }) {
		return
	}
	fd, err := s.open(path, 0)
	switch {
	case err == nil:
		s.add(inode, identity(fd))
		_ = unix.Close(fd)
	case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH):
		s.blind(path, err)
		s.add(inode, netns{Inode: inode})
	}
}

// add notes n, which is what was opened where the inode was seen. If that is another namespace by now,
// only the inode is known.
func (s *scanner) add(inode uint64, n netns) {
	if n.Inode != inode {
		n = netns{Inode: inode}
	}
	if !slices.Contains(s.found[inode], n) {
		s.found[inode] = append(s.found[inode], n)
	}
}

// inodeOf returns the inode of a descriptor, or 0.
func inodeOf(fd int) uint64 {
	var st unix.Stat_t
	_ = unix.Fstat(fd, &st)
	return st.Ino
}

// names returns the names in a directory. It makes a third of the system calls of package os: a
// scan reads thousands of directories.
func names(dir string) (all []string, err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if n <= 0 || err != nil {
			return all, err
		}
		_, _, all = unix.ParseDirent(buf[:n], -1, all)
	}
}

// threadsOf returns the IDs of the threads of a process. The directory of its threads has a link for
// each, and two more: most processes have one thread, and need no listing.
func threadsOf(proc, pid string) ([]string, error) {
	dir := proc + "/" + pid + "/task"
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, err
	}
	if st.Nlink == 3 {
		return []string{pid}, nil
	}
	return names(dir)
}

// readLinks looks at the network namespace of each thread.
func (s *scanner) readLinks() {
	processes, err := names(s.proc)
	if err != nil || !slices.Contains(processes, "1") { // proc leaves out what this process must not see
		s.unseen = "not all processes are in the proc file system"
	}
	for _, pid := range processes {
		if pid[0] < '0' || pid[0] > '9' {
			continue
		}
		threads, err := threadsOf(s.proc, pid)
		s.blind("process "+pid, err)
		for _, tid := range threads {
			thread := s.proc + "/" + pid + "/task/" + tid
			s.threads = append(s.threads, thread)
			link, err := os.Readlink(thread + "/ns/net")
			switch inode, ok := inodeIn(link, "net"); {
			case ok:
				s.seen[inode] = thread
				s.hit(inode, thread+"/ns/net")
			case errors.Is(err, unix.EACCES):
				s.hidden[thread] = err
			default:
				s.blind("thread "+tid, err)
			}
		}
	}
}

// readHidden looks at threads whose links cannot be read: a security module may protect the first
// process of the machine. Each network namespace has a file of its own behind "net/dev", by which
// the namespace of such a thread is that of another thread.
func (s *scanner) readHidden() {
	if len(s.hidden) == 0 {
		return
	}
	namespaces := make(map[uint64]uint64) // by the inode of that file
	for inode, thread := range s.seen {
		if file, ok := deviceFile(thread); ok {
			namespaces[file] = inode
		}
	}
	for thread, err := range s.hidden {
		file, ok := deviceFile(thread)
		inode, known := namespaces[file]
		if !ok || !known {
			s.blind(thread, err)
			continue
		}
		if s.wanted[inode] && len(s.found[inode]) == 0 { // the other thread has left it since
			s.add(inode, netns{Inode: inode})
		}
	}
}

// deviceFile returns the inode of the file "net/dev" of a thread.
func deviceFile(thread string) (uint64, bool) {
	var st unix.Stat_t
	err := unix.Stat(thread+"/net/dev", &st)
	return st.Ino, err == nil
}

// readMountInfo looks at the mounts of a thread whose mount namespace cannot be entered. It sees
// inodes only.
func (s *scanner) readMountInfo(thread string) {
	text, err := os.ReadFile(thread + "/mountinfo")
	s.blind("mounts of "+thread, err)
	for inode := range s.wanted {
		if strings.Contains(string(text), fmt.Sprintf(" net:[%d] ", inode)) {
			s.add(inode, netns{Inode: inode})
		}
	}
}

// readMounts looks at the mounts of each thread.
func (s *scanner) readMounts() {
	for _, thread := range s.threads {
		if _, hidden := s.hidden[thread]; hidden {
			s.readMountInfo(thread)
		} else {
			s.readMountsOf(thread + "/ns/mnt")
		}
	}
}

// readMountsOf looks at the mounts of the mount namespace at path.
func (s *scanner) readMountsOf(path string) {
	link, err := os.Readlink(path)
	s.blind(path, err)
	inode, ok := inodeIn(link, "mnt")
	if !ok || s.mounts[inode] {
		return
	}
	fd, err := s.open(path, 0)
	if err != nil {
		s.blind(path, err)
		return
	}
	s.mounts[inode] = true
	s.enterMounts(fd)
}

// A mounted is a namespace that is mounted somewhere, opened.
type mounted struct {
	kind  string // "net" or "mnt"
	inode uint64
	fd    int
}

// enterMounts looks at the mounts of the mount namespace of a descriptor, which it closes. Some
// mount namespaces have no process, and are mounted in another.
func (s *scanner) enterMounts(fd int) {
	all, err := s.mountsIn(fd)
	s.blind("mounts", err)
	_ = unix.Close(fd)
	for _, m := range all {
		switch {
		case m.kind == "net":
			s.add(m.inode, identity(m.fd))
		case inodeOf(m.fd) != m.inode:
			s.blind("mounts", errCovered)
		case !s.mounts[m.inode]:
			s.mounts[m.inode] = true
			s.enterMounts(m.fd)
			continue
		}
		_ = unix.Close(m.fd)
	}
}

// mountsIn returns the namespaces that are wanted, or are mount namespaces, and are mounted in the
// mount namespace of a descriptor. A thread that has entered it sees all mounts, unlike a process
// there that has another root directory.
func (s *scanner) mountsIn(fd int) (all []mounted, err error) {
	thread.Alone(func() {
		if err = errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(fd, unix.CLONE_NEWNS)); err != nil {
			return
		}
		var info int
		if info, err = unix.Openat(s.procFD, "thread-self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return
		}
		file := os.NewFile(uintptr(info), "mountinfo")
		defer file.Close() //nolint:errcheck // nothing was written
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			const root, point = 3, 4 // proc_pid_mountinfo(5)
			fields := strings.Fields(lines.Text())
			if len(fields) <= point {
				continue
			}
			m := mounted{}
			var ok bool
			m.kind, _, _ = strings.Cut(fields[root], ":")
			if m.inode, ok = inodeIn(fields[root], m.kind); !ok || (m.kind != "net" || !s.wanted[m.inode]) && (m.kind != "mnt" || s.mounts[m.inode]) {
				continue
			}
			var openErr error
			if m.fd, openErr = s.open(unescaped(fields[point]), resolveCached); openErr != nil {
				if m.kind == "net" { // it may be below another mount
					s.add(m.inode, netns{Inode: m.inode})
				} else {
					err = fmt.Errorf("mount namespace at %s: %v", fields[point], openErr) //nolint:errorlint // also if nothing is there
				}
				continue
			}
			all = append(all, m)
		}
		err = errors.Join(err, lines.Err())
	})
	return all, err
}

// resolveCached makes openat2 fail where it would have to ask a file system (linux/openat2.h).
const resolveCached = 0x20

var errCovered = errors.New("something else is mounted there")

// open opens the namespace at path, which a container may have made: on the way there may be a server
// of files that does not answer, and at its end a FIFO or a device.
func (s *scanner) open(path string, resolve uint64) (int, error) {
	at, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // before Linux 5.12, and 5.6
		at, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(at) //nolint:errcheck // nothing was written
	if !isOn(at, unix.NSFS_MAGIC) {
		return -1, errCovered
	}
	return unix.Openat(s.procFD, fmt.Sprintf("thread-self/fd/%d", at), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// unescaped returns a path in which mountinfo has replaced spaces, for example, by "\040".
func unescaped(path string) string {
	for i := 0; i+3 < len(path); i++ {
		if c, err := strconv.ParseUint(path[i+1:i+4], 8, 8); path[i] == '\\' && err == nil {
			path = path[:i] + string([]byte{byte(c)}) + path[i+4:]
		}
	}
	return path
}
