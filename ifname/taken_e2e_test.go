//go:build e2e && linux

package ifname_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/ifname"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// Every name a new link would collide with, and no handle kept.
func TestTaken(t *testing.T) {
	path := inNamespace(t)
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

// What is valid can be created, is then called that, and can be deleted by
// that name; what the kernel refuses is not valid.
func TestValidateAgreesWithKernel(t *testing.T) {
	inNamespace(t)
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

// inNamespace puts the calling goroutine into a network namespace of its own, on a thread that ends
// with it, and returns the namespace's path.
func inNamespace(t *testing.T) string {
	t.Helper()
	runtime.LockOSThread() // and never unlock: the thread is spoilt
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		t.Skipf("needs root to make network namespaces: %v", err)
	}
	return fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
}
