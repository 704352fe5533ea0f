package adopt_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// ofFlannel is what flannel's plugin records.
const ofFlannel = `{"cniVersion":"1.0.0","hairpinMode":true,"ipMasq":false,"ipam":{"type":"host-local"},"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}`

func (w *world) flannel() adopt.Flannel {
	return adopt.Flannel{Dir: w.Path("flannel"), Network: "cbr0"}
}

// at is what a call for c1 says.
func at(result string) delegate.Attached {
	a := delegate.Attached{Attachment: delegate.Attachment{ContainerID: "c1", NetNS: unseen, IfName: "eth0", Args: "A=B"}}
	if result != "" {
		a.Result = json.RawMessage(result)
	}
	return a
}

// What flannel's plugin has attached is removed with the configuration that it
// recorded and the result that the runtime brings.
func TestWhatFlannelAttached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Write("flannel/c1", ofFlannel)
	a, err := w.flannel().Attachment(at(`{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/24"}]}`))
	nodetest.OK(t, err)
	adopted, err := w.life.Adopt(t.Context(), a)
	nodetest.OK(t, err)
	nodetest.Equal(t, "adopted", adopted, true)
	nodetest.OK(t, w.life.Check(t.Context(), a.Key, ""))
	nodetest.OK(t, w.life.Del(t.Context(), a.Key, lifecycle.Removal{}))
	w.WantTrace("CHECK bridge eth0", "DEL bridge eth0")
	if c := w.Last("DEL"); !strings.Contains(stdin(t, c, "prevResult"), "10.1.0.5") || stdin(t, c, "mtu") != "1450" || c.Args != "A=B" {
		t.Errorf("%s %q", c.Stdin, c.Args)
	}
	nodetest.Equal(t, "the file is left", w.exists("flannel/c1"), false)
	_, err = w.flannel().Attachment(at(""))
	nodetest.Is(t, err, fs.ErrNotExist)
}

// Without a file there is nothing to take over; with one that cannot be used
// that is an error.
func TestStateOfFlannelThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	writes := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
	}
	for name, tt := range map[string]struct {
		make func(path string) error
		want string // empty: there is nothing
	}{
		"none":                               {func(string) error { return nil }, ""},
		"a directory, as records had before": {func(path string) error { return os.Mkdir(path, 0o700) }, ""},
		"of another network":                 {writes(strings.Replace(ofFlannel, "cbr0", "other", 1)), ""},
		"a FIFO":                             {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"},
		"a link":                             {func(path string) error { return os.Symlink("/etc/passwd", path) }, "not a regular file"},
		"empty":                              {writes(""), "empty"},
		"torn":                               {writes(ofFlannel[:20]), "JSON"},
		"no plugin":                          {writes(`{"name":"cbr0"}`), "plugins"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Write("flannel/c2", ofFlannel)
			path := w.Path("flannel/c1")
			nodetest.OK(t, tt.make(path))
			a, err := w.flannel().Attachment(at(""))
			nodetest.Equal(t, "attached", len(a.Attached), 0)
			if errors.Is(err, fs.ErrNotExist) != (tt.want == "") {
				t.Error(err)
			}
			if tt.want != "" {
				nodetest.Says(t, err, path+": ", tt.want)
			}
		})
	}
	a := at("")
	a.ContainerID = "../c1"
	if _, err := newWorld(t).flannel().Attachment(a); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a path: %v", err)
	}
}

// What the runtime does not call valid is stale, unless it may be being attached.
// Other programs' files, and records of ours, are left alone.
func TestWhatFlannelLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, text := range map[string]string{
		"alive": ofFlannel, "gone": ofFlannel, "torn": "{", "c1@cbr0@eth0.json": ofFlannel, "others": strings.Replace(ofFlannel, "cbr0", "other", 1),
	} {
		w.old(w.Write("flannel/"+name, text))
	}
	w.Write("flannel/young", ofFlannel)
	w.Write("flannel/half", "")
	got := w.take(w.flannel().Stale([]types.GCAttachment{{ContainerID: "alive", IfName: "eth1"}}))
	if len(got) != 2 || got[0] != "adopted cbr0/gone/eth0 cbr0:eth0" || !strings.HasPrefix(got[1], "skipped: $DIR/flannel/torn: ") {
		t.Errorf("%q", got)
	}
	nodetest.Equal(t, "records", w.states(), []string{"gone/eth0 added"})
	nodetest.Equal(t, "without a directory", newWorld(t).take(newWorld(t).flannel().Stale(nil)), nil)
}

// A configuration that a loss of power has taken is replaced by what it would be
// now, where that is known. A result that is none is left out.
func TestStateOfFlannelThatIsLost(t *testing.T) {
	t.Parallel()
	for left, result := range map[string]string{"": "null", ofFlannel[:30]: "[]"} {
		w := newWorld(t)
		f := w.flannel()
		f.Current = nodetest.Parse(ofFlannel)
		w.old(w.Write("flannel/c1", left))
		a, err := f.Attachment(at(result))
		if err != nil || a.Attached[0].Result != nil || !a.Attached[0].Network.Equal(f.Current) {
			t.Errorf("%+v, %v", a, err)
		}
		nodetest.Equal(t, "got", w.take(f.Stale(nil)), []string{"adopted cbr0/c1/eth0 cbr0:eth0"})
	}
}
