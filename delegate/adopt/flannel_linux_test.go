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
	"github.com/metacni/metacni/netconf"
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
	if adopted, err := w.life.Adopt(t.Context(), a); !adopted || err != nil {
		t.Fatalf("%t, %v", adopted, err)
	}
	nodetest.OK(t, w.life.Check(t.Context(), a.Key, ""))
	nodetest.OK(t, w.life.Del(t.Context(), a.Key, lifecycle.Removal{}))
	nodetest.Equal(t, "calls", w.Exec.Trace(), []string{"CHECK bridge eth0", "DEL bridge eth0"})
	if c := w.Exec.Calls()[1]; !strings.Contains(stdin(t, c, "prevResult"), "10.1.0.5") || stdin(t, c, "mtu") != "1450" || !strings.Contains(strings.Join(c.Env, " "), "A=B") {
		t.Errorf("%s %q", c.Stdin, c.Env)
	}
	if w.exists("flannel/c1") {
		t.Error("the file is left")
	}
	if _, err := w.flannel().Attachment(at("")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after: %v", err)
	}
}

// Without a file there is nothing to take over; with one that cannot be used
// that is an error.
func TestStateOfFlannelThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		make       func(path string) error
		want       string // empty: there is nothing
	}{
		{name: "none"},
		{name: "a directory, as records had before", make: func(path string) error { return os.Mkdir(path, 0o700) }},
		{name: "a FIFO", make: func(path string) error { return syscall.Mkfifo(path, 0o600) }, want: "not a regular file"},
		{name: "a link", make: func(path string) error { return os.Symlink("/etc/passwd", path) }, want: "not a regular file"},
		{name: "empty", make: func(path string) error { return os.WriteFile(path, nil, 0o600) }, want: "empty"},
		{name: "torn", text: ofFlannel[:20], want: "JSON"},
		{name: "no plugin", text: `{"name":"cbr0"}`, want: "plugins"},
		{name: "of another network", text: strings.Replace(ofFlannel, "cbr0", "other", 1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Write("flannel/c2", ofFlannel)
			path := w.Path("flannel/c1")
			if tt.text != "" {
				w.Write("flannel/c1", tt.text)
			}
			if tt.make != nil {
				nodetest.OK(t, tt.make(path))
			}
			a, err := w.flannel().Attachment(at(""))
			switch {
			case a.Attached != nil:
				t.Errorf("%+v", a)
			case tt.want == "" && !errors.Is(err, fs.ErrNotExist):
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), tt.want) || errors.Is(err, fs.ErrNotExist)):
				t.Errorf("%v, want %q", err, tt.want)
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
	for _, id := range []string{"alive", "gone", "torn"} {
		w.old(w.Write("flannel/"+id, ofFlannel))
	}
	w.Write("flannel/young", ofFlannel)
	w.old(w.Write("flannel/c1@cbr0@eth0.json", ofFlannel))
	w.old(w.Write("flannel/torn", "{"))
	w.old(w.Write("flannel/others", strings.Replace(ofFlannel, "cbr0", "other", 1)))
	w.Write("flannel/half", "")
	found := w.flannel().Stale([]types.GCAttachment{{ContainerID: "alive", IfName: "eth1"}})
	got := w.take(found)
	if len(got) != 2 || got[0] != "adopted cbr0/gone/eth0 cbr0:eth0" || !strings.HasPrefix(got[1], "skipped: $DIR/flannel/torn: ") {
		t.Errorf("%q", got)
	}
	nodetest.Equal(t, "records", w.states(), []string{"gone/eth0 added"})
	for range newWorld(t).flannel().Stale(nil) {
		t.Error("something is found in a directory that is not there")
	}
}

// A configuration that a loss of power has taken is replaced by what it would be
// now, where that is known. A result that is none is left out.
func TestStateOfFlannelThatIsLost(t *testing.T) {
	t.Parallel()
	for i, left := range []string{"", ofFlannel[:30]} {
		w := newWorld(t)
		f := w.flannel()
		var err error
		if f.Current, err = netconf.Parse([]byte(ofFlannel)); err != nil {
			t.Fatal(err)
		}
		w.old(w.Write("flannel/c1", left))
		a, err := f.Attachment(at([]string{"null", "[]"}[i]))
		if err != nil || a.Attached[0].Result != nil || !a.Attached[0].Network.Equal(f.Current) {
			t.Errorf("%+v, %v", a, err)
		}
		nodetest.Equal(t, "got", w.take(f.Stale(nil)), []string{"adopted cbr0/c1/eth0 cbr0:eth0"})
	}
}
