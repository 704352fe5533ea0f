package autoconf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/flock"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// put writes files into a directory.
func put(t testing.TB, dir string, files ...string) {
	t.Helper()
	for i := 0; i < len(files); i += 2 {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o600))
	}
}

// list names what is in a directory.
func list(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	nodetest.OK(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// newManager returns a manager of a new directory with files in it.
func newManager(t testing.TB, files ...string) *Manager {
	t.Helper()
	dir := t.TempDir()
	put(t, dir, files...)
	return &Manager{Dir: dir, Output: filepath.Join(dir, "00-multinet"), Template: template}
}

// delegate returns the name of the network that is embedded in the published
// file.
func delegate(t testing.TB, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	nodetest.OK(t, err)
	n, err := netconf.Parse(data)
	nodetest.OK(t, err)
	var config struct{ Delegates []netconf.Network }
	nodetest.OK(t, n.Plugins()[0].Decode(&config))
	return config.Delegates[0].Name()
}

func TestPublish(t *testing.T) {
	t.Parallel()
	m := newManager(t, "05-bad.conf", "{", "10-a.conflist", calico)
	nodetest.OK(t, m.Publish())
	s := m.State()
	if s.Primary != "10-a.conflist" || s.Network != "meta" || s.Published != m.Output+".conflist" || len(s.Skipped) != 1 || s.Degraded != nil {
		t.Errorf("%+v", s)
	}
	info, err := os.Stat(s.Published)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	nodetest.OK(t, m.Publish())
	if again, err := os.Stat(s.Published); err != nil || !os.SameFile(info, again) {
		t.Errorf("written again: %v", err)
	}
	// A network of another version is published in the same form, with another mode if that is asked for.
	put(t, m.Dir, "06-b.conf", flannel)
	m.Mode = 0o666 // more than a umask leaves
	nodetest.OK(t, m.Publish())
	info, err = os.Stat(s.Published)
	nodetest.OK(t, err)
	nodetest.Equal(t, "mode", info.Mode(), 0o666)
	nodetest.Equal(t, "got", list(t, m.Dir), []string{"00-multinet.conflist", "05-bad.conf", "06-b.conf", "10-a.conflist"})
}

func TestPublishFails(t *testing.T) {
	t.Parallel()
	m := newManager(t, "10-a.conf", "{", "20-b.conf", `{"name":"b","type":"multinet"}`)
	err := m.Publish()
	if !errors.Is(err, ErrNoPrimary) || !errors.Is(err, netconf.ErrDecode) || !errors.Is(err, errOwn) {
		t.Error(err)
	}
	m.Ready = filepath.Join(m.Dir, "ready")
	nodetest.Is(t, m.Publish(), ErrNotReady)
	put(t, m.Dir, "ready", "", "30-c.conf", flannel)
	nodetest.OK(t, m.Publish())
	put(t, m.Dir, "00-a.conf", "{")
	nodetest.Is(t, m.Publish(), errShadowed)
	m.Dir = filepath.Join(m.Dir, "absent")
	if err := m.Publish(); !errors.Is(err, ErrNoPrimary) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// At whichever step publishing stops or fails, there is the old
// file or the new one, whole, and nothing that a runtime would read beside it.
func TestOldOrNewFileAtEveryStep(t *testing.T) {
	t.Parallel()
	var steps []string
	m := newManager(t, "10-a.conflist", calico)
	m.hook = func(call, _ string) error { steps = append(steps, call); return nil }
	nodetest.OK(t, m.Publish())
	if len(steps) < 8 {
		t.Fatalf("only %q", steps)
	}
	for i, call := range steps {
		for _, first := range []bool{true, false} {
			m := newManager(t, "10-a.conflist", calico)
			if !first {
				nodetest.OK(t, m.Publish())
				put(t, m.Dir, "05-b.conflist", strings.ReplaceAll(calico, "calico", "other"))
			}
			n := 0
			m.hook = func(string, string) error {
				if n++; n > i {
					return errTest // and so does everything after: the process is dead
				}
				return nil
			}
			perr := m.Publish()
			for _, name := range list(t, m.Dir) {
				if isConfig(name) && name != "00-multinet.conflist" && name != "10-a.conflist" && name != "05-b.conflist" {
					t.Errorf("%s: a runtime would read %s", call, name)
				}
			}
			file := m.Output + ".conflist"
			if _, err := os.Stat(file); !first || err == nil {
				if name := delegate(t, file); name != "calico" && (name != "other" || first) {
					t.Errorf("%s: %s is published", call, name)
				}
			}
			m.hook = nil
			if err := m.Publish(); err != nil {
				t.Errorf("%s (%v): then %v", call, perr, err)
			}
			want := []string{"00-multinet.conflist", "10-a.conflist"}
			if !first {
				want = []string{"00-multinet.conflist", "05-b.conflist", "10-a.conflist"}
			}
			if names := list(t, m.Dir); perr != nil && call != "fsync" && !slices.Equal(names, want) {
				t.Errorf("%s: left %q", call, names)
			}
		}
	}
}

// Uninstall removes what is ours and nothing else.
func TestUninstallRemovesOnlyOurs(t *testing.T) {
	t.Parallel()
	ours := `{"name":"x","type":"multinet"}`
	for name, tt := range map[string]struct{ content, want string }{
		"ours":          {ours, ""},
		"empty":         {"", ""},
		"broken":        {"{", ""},
		"sub-directory": {`{"name":"x","cniVersion":"1.0.0"}`, "00-multinet.conflist"},
		"someone's own": {flannel, "00-multinet.conflist"},
	} {
		m := newManager(t, "00-multinet.conf", ours, "00-multinet.conflist", tt.content, ".00-multinet.tmp-1", "", "10-a.conf", flannel)
		nodetest.OK(t, m.Uninstall())
		nodetest.Equal(t, name, list(t, m.Dir), strings.Fields("00-multinet.conf "+tt.want+" 10-a.conf"))
		nodetest.OK(t, m.Uninstall())
	}
	m := newManager(t)
	nodetest.OK(t, os.Symlink("10-a.conf", m.Output+".conflist"))
	nodetest.Is(t, m.Uninstall(), errNotRegular)
	nodetest.OK(t, os.RemoveAll(m.Dir))
	nodetest.OK(t, m.Uninstall())
}

// What stands in the place of our file is replaced, or is an error, and what a
// link leads to stays as it is.
func TestInOurPlace(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]func(file string) error{
		"link":          func(file string) error { return os.Symlink("10-a.conflist", file) },
		"dangling link": func(file string) error { return os.Symlink("/no/where", file) },
		"loop":          func(file string) error { return os.Symlink(filepath.Base(file), file) },
		"FIFO":          func(file string) error { return unix.Mkfifo(file, 0o600) },
		"hard link":     func(file string) error { return os.Link(filepath.Join(filepath.Dir(file), "20-b.conf"), file) },
	} {
		m := newManager(t, "10-a.conflist", calico, "20-b.conf", flannel)
		nodetest.OK(t, place(m.Output+".conflist"))
		if err := m.Publish(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		info, err := os.Lstat(m.Output + ".conflist")
		if err != nil || !info.Mode().IsRegular() || delegate(t, m.Output+".conflist") != "calico" {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		for file, want := range map[string]string{"10-a.conflist": calico, "20-b.conf": flannel} {
			if data, err := os.ReadFile(filepath.Join(m.Dir, file)); string(data) != want || err != nil {
				t.Errorf("%s: %s is now %q, %v", name, file, data, err)
			}
		}
	}
	m := newManager(t, "10-a.conflist", calico)
	nodetest.OK(t, os.Mkdir(m.Output+".conflist", 0o700))
	nodetest.Code(t, m.Publish(), 5)
	nodetest.Equal(t, "got", list(t, m.Dir), []string{"00-multinet.conflist", "10-a.conflist"})
}

// Nothing in a real directory makes a look fail, hang or take it. netconf has which files it reads.
func TestBadDirectory(t *testing.T) {
	t.Parallel()
	m := newManager(t, "01-empty.conf", "", "02-\n\xff.conf", "{", "90-good.conf", flannel)
	at := func(name string) string { return filepath.Join(m.Dir, name) }
	nodetest.OK(t, errors.Join(
		unix.Mkfifo(at("03-fifo.conf"), 0o600), os.Mkdir(at("04-dir.conf"), 0o700), os.Symlink("05-loop.conf", at("05-loop.conf")),
		os.Symlink("03-fifo.conf", at("06-to-fifo.conf")), os.Symlink("00-multinet.conflist", at("07-to-ours.conf")),
		os.Symlink("/dev/zero", at("08-zero.conf")), os.WriteFile(at("09-huge.conf"), make([]byte, bounds.Network+1), 0o600),
	))
	for range 2 {
		if err := m.Publish(); err != nil && !errors.Is(err, errShadowed) {
			t.Error(err)
		}
	}
	var skipped []string
	for _, s := range m.State().Skipped {
		quoted, err := strconv.QuotedPrefix(s.Error()[strings.Index(s.Error(), `"`):])
		nodetest.OK(t, err)
		name, err := strconv.Unquote(quoted)
		nodetest.OK(t, err)
		skipped = append(skipped, name)
	}
	nodetest.Equal(t, "skipped", skipped, []string{
		"01-empty.conf", "02-\n\xff.conf", "03-fifo.conf", "05-loop.conf", "06-to-fifo.conf", "07-to-ours.conf", "08-zero.conf", "09-huge.conf",
	})
	nodetest.Equal(t, "published", delegate(t, m.Output+".conflist"), "flannel")
}

// Only one of several managers is at work.
func TestLock(t *testing.T) {
	t.Parallel()
	m := newManager(t, "10-a.conf", flannel)
	m.Lock = filepath.Join(t.TempDir(), "state", "lock")
	nodetest.OK(t, m.Publish())
	held, err := lock("", m.Lock, "publishes "+m.Output)
	nodetest.OK(t, err)
	host, err := os.Hostname()
	nodetest.OK(t, err)
	for verb, do := range map[string]func() error{"publish": m.Publish, "uninstall": m.Uninstall} {
		err := do()
		nodetest.Code(t, err, 11)
		if want := fmt.Sprintf("another manager is at work: %s, process %d on host %s, which publishes %s", filepath.Base(os.Args[0]), os.Getpid(), host, m.Output); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v does not say %q", verb, err, want)
		}
	}
	child, err := unix.Dup(int(held.Fd())) // as a child has it that has not called exec yet
	nodetest.OK(t, err)
	defer unix.Close(child)
	flock.Release(held)
	held, err = lock("", m.Lock, "")
	nodetest.OK(t, err)
	flock.Release(held)
	nodetest.OK(t, m.Uninstall())
	nodetest.Equal(t, "got", list(t, m.Dir), []string{"10-a.conf"})
	nodetest.OK(t, os.Remove(m.Lock))
	nodetest.OK(t, os.Mkdir(m.Lock, 0o700))
	if err := m.Publish(); err == nil || errors.Is(err, ErrLocked) {
		t.Errorf("a directory for a lock: %v", err)
	}
	// Its directory is made, and none above it.
	up := filepath.Join(t.TempDir(), "up")
	m.Lock = filepath.Join(up, "state", "lock")
	nodetest.Is(t, m.Publish(), fs.ErrNotExist)
	if _, err := os.Lstat(up); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("was made: %v", err)
	}
}

// By reference, the published network names the file as the plugin finds it.
func TestPublishByPath(t *testing.T) {
	t.Parallel()
	m := newManager(t, "10-a.conflist", calico, "05-loop.conf", `{"name":"x","type":"multus","clusterNetwork":"/host/net.d/00-multinet.conflist"}`)
	m.ClusterNetworkDir = "/host/net.d"
	nodetest.OK(t, m.Publish())
	data, err := os.ReadFile(m.State().Published)
	if want := `"clusterNetwork":"/host/net.d/10-a.conflist"`; err != nil || !strings.Contains(string(data), want) || strings.Contains(string(data), "delegates") {
		t.Errorf("%s, %v", data, err)
	}
	if got := fmt.Sprint(m.State().Skipped); !strings.Contains(got, "05-loop.conf") {
		t.Errorf("led to itself: %s", got)
	}
}

func TestInvalidManager(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Manager){
		"zero":              func(m *Manager) { m.Dir, m.Output, m.Template = "", "", netconf.Plugin{} },
		"relative Dir":      func(m *Manager) { m.Dir = "net.d" },
		"Output is .conf":   func(m *Manager) { m.Output = m.Dir + "/.conf" },
		"relative plugin":   func(m *Manager) { m.ClusterNetworkDir = "x" },
		"Primary a path":    func(m *Manager) { m.Primary = "../10-a.conf" },
		"Primary is ours":   func(m *Manager) { m.Primary = "00-multinet.conflist" },
		"Template's name":   func(m *Manager) { m.Template = plugin(`{"type":"multinet","name":"../x"}`) },
		"Template's number": func(m *Manager) { m.Template = plugin(`{"type":"multinet","n":1e999}`) },
		"relative Root":     func(m *Manager) { m.Root = "host" },
		"Lock in Dir":       func(m *Manager) { m.Lock = m.Dir + "/lock" },
		"Lock via link":     func(m *Manager) { m.Lock = m.Dir + "/../" + filepath.Base(m.Dir) + "/lock" },
		"Mode":              func(m *Manager) { m.Mode = 0o600 | fs.ModeSetuid },
		"Grace":             func(m *Manager) { m.Grace = -1 },
	} {
		m := newManager(t, "10-a.conf", flannel)
		change(m)
		for verb, do := range map[string]func() error{"publish": m.Publish, "run": func() error { return m.Run(t.Context()) }, "uninstall": m.Uninstall, "find": func() error { _, err := m.Find(); return err }} {
			err := do()
			if !errors.Is(err, ErrInvalid) || status.Code(err) != 7 && status.Code(err) != 6 {
				t.Errorf("%s: %s: %v", name, verb, err)
			}
		}
	}
}

// What would be published in front of is told without publishing anything.
func TestFind(t *testing.T) {
	t.Parallel()
	m := newManager(t, "05-a.conf", "{", "10-a.conf", flannel)
	m.Ready = filepath.Join(m.Dir, "absent")
	p, err := m.Find()
	if err != nil || p.Name != "10-a.conf" || p.Network.Name() == "" {
		t.Errorf("%+v, %v", p, err)
	}
	m.Primary = "05-a.conf"
	if p, err = m.Find(); !errors.Is(err, ErrNoPrimary) || !strings.Contains(err.Error(), "05-a.conf") || p.Name != "" {
		t.Errorf("%+v, %v", p, err)
	}
	m.Dir = filepath.Join(m.Dir, "absent")
	if _, err = m.Find(); !errors.Is(err, ErrNoPrimary) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if s := m.State(); s.Written > 0 || s.Degraded != nil {
		t.Errorf("%+v", s)
	}
}

// The published file is never the primary network by another name: it would hold
// itself, once more each time.
func TestPublishedFileByAnotherNameIsOwn(t *testing.T) {
	t.Parallel()
	for name, link := range map[string]func(file, other string) error{"symbolic link": os.Symlink, "hard link": os.Link} {
		m := newManager(t, "10-a.conflist", calico)
		nodetest.OK(t, m.Publish())
		nodetest.OK(t, link(m.Output+".conflist", filepath.Join(m.Dir, "05-other.conflist")))
		nodetest.OK(t, m.Publish())
		if s := m.State(); s.Primary != "10-a.conflist" || len(s.Skipped) != 1 || !errors.Is(s.Skipped[0], errOwn) {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// node returns the root directory of a node, with a manager of its network. The
// node has absolute links wherever it can, which lead to other files outside.
func node(t *testing.T) (root string, m *Manager) {
	t.Helper()
	root = t.TempDir()
	for _, dir := range []string{"data/net.d", "data/run", "etc/cni", "opt"} {
		nodetest.OK(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	for link, to := range map[string]string{
		"etc/cni/net.d":                "/data/net.d",
		"run":                          "/data/run",
		"data/run/ready":               "/opt/ready",
		"data/net.d/05-out.conflist":   filepath.Join(t.TempDir(), "out.conflist"),
		"data/net.d/10-link.conflist":  "/opt/link.conflist",
		"data/net.d/20-other.conflist": "../../../../../../../../../../opt/other.conflist",
	} {
		nodetest.OK(t, os.Symlink(to, filepath.Join(root, link)))
		if filepath.Base(link) == "05-out.conflist" {
			put(t, filepath.Dir(to), "out.conflist", net("out"))
		}
	}
	put(t, root, "opt/ready", "", "opt/link.conflist", net("link"), "opt/other.conflist", net("other"))
	return root, &Manager{
		Root: root, Dir: "/etc/cni/net.d", Output: "/etc/cni/net.d/00-multinet", Ready: "/run/ready",
		Lock: "/etc/cni/net.d/.multinet/lock", Template: plugin(`{"type":"multinet"}`),
	}
}

// Links of the node, also those of a single file, are followed in its root, and
// nothing is read or written outside.
func TestLinksAreFollowedInRoot(t *testing.T) {
	t.Parallel()
	root, m := node(t)
	if f, err := m.Find(); f.Name != "10-link.conflist" || err != nil {
		t.Errorf("found %s, %v", f.Name, err)
	}
	nodetest.OK(t, m.Publish())
	s := m.State()
	if s.Published != "/etc/cni/net.d/00-multinet.conflist" || s.Network != "link" || len(s.Skipped) != 1 {
		t.Errorf("%+v", s)
	}
	nodetest.Equal(t, "what is published", delegate(t, filepath.Join(root, "data/net.d/00-multinet.conflist")), "link")
	nodetest.OK(t, m.Uninstall())
	want := []string{".multinet", "05-out.conflist", "10-link.conflist", "20-other.conflist"}
	nodetest.Equal(t, "got", list(t, filepath.Join(root, "data/net.d")), want)
	nodetest.OK(t, os.Remove(filepath.Join(root, "opt/ready")))
	nodetest.Is(t, m.Publish(), ErrNotReady)
}
