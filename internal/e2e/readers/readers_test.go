//go:build linux

// Package readers tests package netconf/autoconf with the programs that read
// what it publishes: the loaders of libcni, and of go-cni, which containerd
// uses.
package readers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gocni "github.com/containerd/go-cni"
	"github.com/containernetworking/cni/libcni"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

const (
	// publications is how often the manager publishes, with -long.
	publications = 10_000

	// longest ends the test early on a slow machine or with the race detector.
	longest = 40 * time.Second
)

// A document is the first network that a reader finds.
type document struct {
	network string
	plugin  []byte // configuration of its only plugin
}

// readers read the directory as runtimes do.
var readers = map[string]func(dir string) (document, error){
	// CRI-O's ocicni does the same, but takes the next file if the first is
	// invalid: then pods silently get another network.
	"libcni": func(dir string) (document, error) {
		files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
		if err != nil {
			return document{}, err
		}
		if slices.Sort(files); len(files) == 0 {
			return document{}, errors.New("no files")
		}
		l, err := libcni.NetworkConfFromFile(files[0])
		if err != nil {
			return document{}, fmt.Errorf("%s: %w", files[0], err)
		}
		if len(l.Plugins) != 1 {
			return document{}, fmt.Errorf("%s: %d plugins", files[0], len(l.Plugins))
		}
		return document{l.Name, l.Plugins[0].Bytes}, nil
	},
	// containerd has no network while the first file is invalid.
	"go-cni": func(dir string) (document, error) {
		l, err := gocni.New(gocni.WithPluginConfDir(dir), gocni.WithPluginMaxConfNum(1))
		if err == nil {
			err = l.Load(gocni.WithDefaultConf)
		}
		if err != nil {
			return document{}, err
		}
		n := l.GetConfig().Networks[0].Config
		if len(n.Plugins) != 1 {
			return document{}, fmt.Errorf("%d plugins", len(n.Plugins))
		}
		return document{n.Name, []byte(n.Plugins[0].Source)}, nil
	},
}

// generation returns the number of the primary network that d was made from. It
// fails unless d is a complete configuration of multinet.
func (d document) generation() (int, error) {
	var plugin struct {
		Type      string `json:"type"`
		Delegates []struct {
			Name string `json:"name"`
		} `json:"delegates"`
	}
	if err := json.Unmarshal(d.plugin, &plugin); err != nil {
		return 0, err
	}
	if plugin.Type != "multinet" || len(plugin.Delegates) != 1 || plugin.Delegates[0].Name != d.network {
		return 0, fmt.Errorf("network %q: %s", d.network, d.plugin)
	}
	return strconv.Atoi(strings.TrimPrefix(d.network, "n"))
}

// A writer changes the primary network's file in every way it may change.
type writer struct {
	t     *testing.T
	dir   string
	maps  int // number of directories created as for a ConfigMap
	count map[string]int
}

func (w *writer) path(name string) string { return filepath.Join(w.dir, name) }

func (w *writer) ok(err error) {
	if err != nil {
		w.t.Error(err)
	}
}

func (w *writer) put(name, text string) { w.ok(os.WriteFile(w.path(name), []byte(text), 0o600)) }

// network returns the i'th network, large enough to need several writes.
func network(i int) string {
	return fmt.Sprintf(`{"cniVersion":"1.0.0","name":"n%d","plugins":[{"type":"bridge","padding":%q}]}`, i, strings.Repeat("x", i%5000))
}

const primary = "10-x.conflist"

// write replaces the primary network by the i'th, in a randomly chosen way.
func (w *writer) write(i int) {
	ways := []string{"in place", "torn", "swapped", "renamed", "deleted", "linked", "garbage"}
	way := ways[rand.N(len(ways))]
	w.count[way]++
	text := network(i)
	if info, err := os.Lstat(w.path(primary)); err == nil && info.Mode()&os.ModeSymlink != 0 && way != "linked" {
		w.ok(os.Remove(w.path(primary))) // otherwise the write goes to the link's target
	}
	switch way {
	case "in place":
		w.put(primary, text)
	case "torn":
		f, err := os.Create(w.path(primary))
		w.ok(err)
		for len(text) > 0 {
			n := 1 + rand.N(len(text))
			_, err := f.WriteString(text[:n])
			w.ok(err)
			text = text[n:]
		}
		w.ok(f.Close())
	case "swapped":
		w.put(".10-x.tmp", text)
		w.ok(os.Rename(w.path(".10-x.tmp"), w.path(primary)))
	case "renamed":
		_ = os.Rename(w.path(primary), w.path("99-old.conflist"))
		w.put("x", text)
		w.ok(os.Rename(w.path("x"), w.path(primary)))
		_ = os.Remove(w.path("99-old.conflist"))
	case "deleted":
		_ = os.Remove(w.path(primary))
		w.put(primary, text)
	case "garbage":
		w.put(primary, "")
		w.put("05-x.conf", text[:rand.N(len(text))])
		w.put(primary, text)
		w.ok(os.Remove(w.path("05-x.conf")))
	case "linked": // as the kubelet updates a ConfigMap
		w.maps++
		data := fmt.Sprintf("..%d", w.maps)
		w.ok(os.Mkdir(w.path(data), 0o700))
		w.put(filepath.Join(data, "net"), text)
		old, _ := os.Readlink(w.path("..data"))
		w.ok(os.Symlink(data, w.path("..data_tmp")))
		w.ok(os.Rename(w.path("..data_tmp"), w.path("..data")))
		if old != "" {
			w.ok(os.RemoveAll(w.path(old)))
		}
		if info, err := os.Lstat(w.path(primary)); err != nil || info.Mode()&os.ModeSymlink == 0 {
			w.ok(os.Symlink("..data/net", w.path("link")))
			w.ok(os.Rename(w.path("link"), w.path(primary)))
		}
	}
}

// dirEnv names the directory to read to a process that is the reader.
const dirEnv = "METACNI_READERS_DIR"

// TestMain runs the reader in a process of its own, as runtimes are: a
// goroutine that never rests would keep the manager from waking up.
func TestMain(m *testing.M) {
	if dir := os.Getenv(dirEnv); dir != "" {
		if err := read(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// read reads dir with every reader in turn, without a pause, until stdin is
// closed. Then it prints its figures.
func read(dir string) error {
	var stop atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop.Store(true)
	}()
	reads, networks := 0, 0
	for last := -1; !stop.Load(); reads++ {
		for name, read := range readers {
			d, err := read(dir)
			generation := 0
			if err == nil {
				generation, err = d.generation()
			}
			if err != nil {
				return fmt.Errorf("%s, after %d reads: %w", name, reads, err)
			}
			if generation < last {
				return fmt.Errorf("%s, after %d reads: network %d after %d", name, reads, generation, last)
			}
			if generation > last {
				networks++
			}
			last = generation
		}
		if reads == 0 {
			fmt.Println("reading")
		}
	}
	_, err := fmt.Printf("%d reads by each of %d readers, %d networks, none invalid, empty or older\n", reads, len(readers), networks)
	return err
}

// A process is a running reader.
type process struct {
	t     *testing.T
	stdin io.Closer
	said  chan string // the lines it prints; closed when it has exited
	cmd   *exec.Cmd
}

// startReader starts a reader and waits until it has read once.
func startReader(t *testing.T, dir string) *process {
	t.Helper()
	self, err := os.Executable()
	nodetest.OK(t, err)
	p := &process{t: t, said: make(chan string), cmd: exec.CommandContext(t.Context(), self)}
	// Without the Go runtime's own signals: tmpfs resumes an interrupted listing
	// at a place where a file that was renamed in between is missing.
	p.cmd.Env = append(os.Environ(), dirEnv+"="+dir, "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	p.cmd.Stderr = os.Stderr
	stdin, ierr := p.cmd.StdinPipe()
	stdout, oerr := p.cmd.StdoutPipe()
	nodetest.OK(t, errors.Join(ierr, oerr, p.cmd.Start()))
	p.stdin = stdin
	go func() {
		defer close(p.said)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			p.said <- lines.Text()
		}
	}()
	if line := <-p.said; line != "reading" {
		p.end()
		t.Fatal("the reader has not read")
	}
	return p
}

// end stops the reader and fails the test if the reader has found anything
// wrong.
func (p *process) end() {
	p.t.Helper()
	_ = p.stdin.Close()
	for line := range p.said {
		p.t.Logf("figures: %s", line)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the reader: %v", err)
	}
}

// newDir returns a directory in memory if possible. On a disk, a reader without
// pauses and fsync would block each other.
func newDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "metacni") //nolint:usetesting // t's directory is on a disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

var long = flag.Bool("long", false, "more publications")

// TestReadersSeeWholeFilesOnly: whatever happens to the primary network's file,
// readers find a valid, complete file of ours first, and never an older one
// than before.
func TestReadersSeeWholeFilesOnly(t *testing.T) {
	t.Parallel()
	want := publications
	if !*long {
		want /= 20
	}
	template, err := netconf.ParsePlugin([]byte(`{"type":"multinet"}`))
	nodetest.OK(t, err)
	w := &writer{t: t, dir: newDir(t), count: map[string]int{}}
	m := &autoconf.Manager{Dir: w.dir, Output: w.path("00-multinet"), Template: template, Debounce: 1, Grace: time.Hour}
	changed := make(chan struct{}, 1)
	m.Observer = func(autoconf.State) {
		select {
		case changed <- struct{}{}:
		default: // the signal before is still pending
		}
	}
	w.put(primary, network(0))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	var reader *process
	follows := func(i int) bool {
		var gone chan string // closed with the reader's output
		if reader != nil {
			gone = reader.said
		}
		for {
			if s := m.State(); s.Network == fmt.Sprint("n", i) && s.Published != "" {
				return true
			}
			select {
			case <-changed:
			case <-gone:
				return false
			case err := <-ended:
				t.Fatal(err)
			}
		}
	}
	follows(0)
	reader = startReader(t, w.dir)
	start := time.Now()
	i := 1
	for w.write(i); follows(i) && m.State().Written < want && time.Since(start) < longest; i++ {
		w.write(i + 1)
	}
	took := time.Since(start)
	reader.end()
	state := m.State()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	t.Logf("figures: %d changes of the primary network's file %v, published %d times in %v", i, w.count, state.Written, took.Round(time.Millisecond))
	if state.Restored > 0 || state.Degraded != nil || state.Written < want/20 {
		t.Errorf("%+v", state)
	}
}
