package autoconf

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// Whoever reads the directory as runtimes do, while the primary network's
// file is torn, replaced and removed, always finds a whole file of ours first.
func TestReadersSeeWhole(t *testing.T) {
	t.Parallel()
	m := newManager(t, "10-x.conflist", net("a"))
	running(t, m)
	publishes(t, m, "a")
	stop := make(chan struct{})
	reads := make(chan int)
	go func() {
		n := 0
		defer func() { reads <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			files, err := libcni.ConfFiles(m.Dir, []string{".conf", ".conflist", ".json"})
			slices.Sort(files)
			if err != nil || len(files) == 0 || files[0] != m.Output+".conflist" {
				t.Errorf("%q, %v", files, err)
				return
			}
			l, err := libcni.NetworkConfFromFile(files[0])
			if err != nil || len(l.Plugins) != 1 || l.Plugins[0].Network.Type != "multinet" {
				t.Errorf("%v, %v", l, err)
				return
			}
			n++
		}
	}()
	file := filepath.Join(m.Dir, "10-x.conflist")
	for i := range 200 {
		switch name := net(fmt.Sprint("n", i)); i % 4 {
		case 0:
			put(t, m.Dir, "10-x.conflist", name[:i%len(name)]) // torn
		case 1:
			put(t, m.Dir, "10-x.conflist", name)
		case 2:
			put(t, m.Dir, ".tmp-1", name)
			ok(t, os.Rename(filepath.Join(m.Dir, ".tmp-1"), file))
		case 3:
			ok(t, os.Remove(file))
		}
		if i%20 == 1 {
			publishes(t, m, fmt.Sprint("n", i))
		}
	}
	put(t, m.Dir, "10-x.conflist", net("b"))
	publishes(t, m, "b")
	close(stop)
	if n := <-reads; n == 0 {
		t.Error("nothing was read")
	}
}
