package ifname_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/ifname"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestTakenErrors(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	nodetest.OK(t, os.WriteFile(file, nil, 0o600))
	for _, tt := range []struct {
		name, path string
		code       uint
		missing    bool
	}{
		{"missing", filepath.Join(t.TempDir(), "gone"), 4, true},
		{"empty", "", 4, true},
		{"process gone", "/proc/0/ns/net", 4, true},
		{"file", file, 4, false},
		{"directory", t.TempDir(), 4, false},
		{"file of proc", "/proc/self/status", 4, false},
		{"directory of proc", "/proc/self", 4, false},
		{"another kind of namespace", "/proc/self/ns/uts", 4, false},
		{"below a file", file + "/net", 5, false},
		{"NUL", "a\x00b", 5, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			names, err := ifname.Taken(tt.path)
			var e *ifname.Error
			if names != nil || !errors.As(err, &e) {
				t.Fatalf("Taken = %q, %v; want an *ifname.Error", names, err)
			}
			if e.NetNS != tt.path || e.CNICode() != tt.code || errors.Is(err, fs.ErrNotExist) != tt.missing {
				t.Errorf("error %v: path %q, code %d, not-exist %t; want %q, %d, %t",
					err, e.NetNS, e.CNICode(), !tt.missing, tt.path, tt.code, tt.missing)
			}
			if !strings.Contains(err.Error(), fmt.Sprintf("%q", tt.path)) {
				t.Errorf("error %q does not name the path", err)
			}
		})
	}
}

// Every name a new link would collide with, and no handle kept.
func TestTaken(t *testing.T) {
	path := inNamespace(t)
	if path == "" {
		return
	}
	if names, err := ifname.Taken(path); err != nil || !cmp.Equal(names, []string{"lo"}) {
		t.Fatalf("Taken = %q, %v; want lo alone", names, err)
	}
	addLink(t, "net1")
	addLink(t, "eth0")
	link, err := netlink.LinkByName("net1")
	nodetest.OK(t, err)
	long := "alternative-" + strings.Repeat("x", 100)
	want := []string{"eth0", "lo", "net1"}
	if err := netlink.LinkAddAltName(link, long); err == nil {
		want = []string{long, "blue", "eth0", "lo", "net1"}
		nodetest.OK(t, netlink.LinkAddAltName(link, "blue"))
	} else {
		t.Logf("this kernel has no alternative names (5.5 and later): %v", err)
	}
	before := readlink(t, "/proc/thread-self/ns/net")
	got, err := ifname.Taken(path)
	nodetest.OK(t, err)
	nodetest.Equal(t, "names", got, want)
	if after := readlink(t, "/proc/thread-self/ns/net"); after != before {
		t.Errorf("namespace is %s, was %s", after, before)
	}
	fds, err := filepath.Glob("/proc/self/fd/*")
	nodetest.OK(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == before {
			t.Errorf("%s is still open on %s", fd, to)
		}
	}
	// What Taken finds is what Plan needs.
	plan, err := ifname.Scheme{Primary: "eth1", Taken: got}.Plan("", "")
	if err != nil || !cmp.Equal(plan, []string{"eth1", "net2"}) {
		t.Errorf("plan %q, %v", plan, err)
	}
}

// Several goroutines may ask at once.
func TestTakenTogether(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := ifname.Taken("/proc/self/ns/net"); err != nil && os.Geteuid() == 0 {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// What is valid can be created, is then called that, and can be deleted by
// that name; what the kernel refuses is not valid.
func TestValidateAgreesWithKernel(t *testing.T) {
	path := inNamespace(t)
	if path == "" {
		return
	}
	addLink(t, "probe") // skips when there is no kind of link to be had
	refused := map[string]bool{}
	for _, tt := range names {
		err := newLink(tt.name)
		refused[tt.name] = err != nil
		if tt.why != "" {
			continue
		}
		if err != nil {
			t.Errorf("%q is valid, but the kernel says: %v", tt.name, err)
			continue
		}
		link, err := netlink.LinkByName(tt.name)
		if err != nil || link.Attrs().Name != tt.name {
			t.Errorf("%q was created, but is not there: %v", tt.name, err)
			continue
		}
		if err := netlink.LinkDel(link); err != nil {
			t.Errorf("%q cannot be deleted: %v", tt.name, err)
		}
	}
	for _, name := range []string{"..", "a/b", "a:1", "a b", "à", "lo", "all", "default"} {
		if !refused[name] {
			t.Errorf("the kernel takes %q: say so in Validate", name)
		}
	}
}

func readlink(t *testing.T, name string) string {
	t.Helper()
	to, err := os.Readlink(name)
	nodetest.OK(t, err)
	return to
}

// addLink adds a link to the current thread's namespace, of the first kind
// that the kernel has. It skips the test when the kernel has none of them.
func addLink(t *testing.T, name string) {
	t.Helper()
	if err := newLink(name); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skipf("needs a kernel with dummy, bridge or veth links: %v", err)
		}
		t.Fatal(err)
	}
}

func newLink(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	var err error
	for _, link := range []netlink.Link{
		&netlink.Dummy{LinkAttrs: attrs},
		&netlink.Bridge{LinkAttrs: attrs},
		&netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("peer%d", os.Getpid())},
	} {
		if err = netlink.LinkAdd(link); !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
	}
	return err
}

// inNamespace puts the calling goroutine into a network namespace of its own,
// on a thread that ends with it, and returns the namespace's path. Without the
// right to do so it runs this one test again as root of a new user namespace
// and returns "": the test was done there. Where that is not allowed either it
// skips the test.
func inNamespace(t *testing.T) string {
	t.Helper()
	runtime.LockOSThread() // and never unlock: the thread is spoilt
	err := unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		return fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
	}
	runtime.UnlockOSThread()
	const nested = "METACNI_TEST_NESTED"
	if os.Getenv(nested) != "" {
		t.Skipf("needs the right to make a network namespace (root, or user namespaces): %v", err)
	}
	exe, err := os.Executable()
	nodetest.OK(t, err)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), nested+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		t.Fatalf("in a user namespace: %v\n%s", err, out)
	case err != nil, strings.Contains(string(out), "--- SKIP"):
		t.Skipf("needs the right to make a network namespace (root, or user namespaces): %v\n%s", err, out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Fatalf("in a user namespace: not run\n%s", out)
	}
	return ""
}
