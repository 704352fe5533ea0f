package adopt_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/lifecycle"
)

// DEL of a container without a record removes what the runtime has attached to the
// primary network, and libcni's entry of it. It leaves everything else alone.
func TestDELRemovesWhatOnlyTheRuntimeKnows(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		primary []string
		attach  func(w *world)
		runs    bool
		want    string // in the error
	}{
		{name: "nothing", primary: []string{"cbr"}},
		{name: "the primary network", primary: []string{"other", "cbr"}, attach: func(w *world) { w.attach("cni", cbr, runtime(unseen)) }, runs: true},
		{name: "another network", primary: []string{"cb"}, attach: func(w *world) { w.attach("cni", cbr, runtime(unseen)) }},
		{name: "another interface", primary: []string{"cbr"}, attach: func(w *world) {
			rt := runtime(unseen)
			rt.IfName = "eth1"
			w.attach("cni", cbr, rt)
		}},
		{name: "a file that has other names", primary: []string{"cbr"}, attach: func(w *world) {
			rt := runtime(unseen)
			rt.ContainerID = "c1-eth0"
			w.attach("cni", strings.ReplaceAll(cbr, `"cbr"`, `"x"`), rt)
			w.write("cni/results/cbr-c1-eth0", w.read("cni/results/x-c1-eth0-eth0"))
		}, want: "does not match"},
		{name: "our own network", primary: []string{"cbr"}, attach: func(w *world) {
			w.attach("cni", strings.ReplaceAll(cbr, "bridge", "multinet"), runtime(unseen))
		}},
		{name: "a damaged file", primary: []string{"cbr"}, attach: func(w *world) { w.write("cni/results/cbr-c1-eth0", "{") }, want: "results/cbr-c1-eth0: incomplete"},
		{name: "an empty file", primary: []string{"cbr"}, attach: func(w *world) { w.write("cni/results/cbr-c1-eth0", "") }, want: "results/cbr-c1-eth0: empty"},
		{name: "a path as a name", primary: []string{"../results/cbr"}, attach: func(w *world) { w.attach("cni", cbr, runtime(unseen)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec.Plugins["multinet"] = w.exec.Plugins["bridge"]
			if tt.attach != nil {
				tt.attach(w)
			}
			w.node.Primary = tt.primary
			err := w.life.Del(t.Context(), lifecycle.Removal{Key: eth0, Adopt: func() (lifecycle.Adoption, error) {
				return w.node.Attachment("c1", "eth0")
			}})
			if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err = %v, want %q", err, tt.want)
			}
			if got := strings.Join(w.exec.Trace(), ", "); (got == "DEL portmap eth0, DEL bridge eth0") != tt.runs || !tt.runs && got != "" {
				t.Errorf("ran %q", got)
			}
			if tt.runs && w.exists("cni/results/cbr-c1-eth0") || len(w.states()) > 0 {
				t.Errorf("left: %q", w.states())
			}
		})
	}
	w := newWorld(t)
	w.attach("cni", cbr, runtime(unseen))
	w.node.CacheDir = ""
	if _, err := w.node.Attachment("c1", "eth0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a cache: %v", err)
	}
}
