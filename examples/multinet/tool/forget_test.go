package tool

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/programtest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
)

// A network whose attach was interrupted is not shown as added, and the others are. The
// status has what is whole.
func TestToolIncomplete(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.mustRun(t, "ADD", bridge)
	green := nodetest.Parse(`{"cniVersion":"1.0.0","name":"green","type":"dies"}`)
	h.Exec.Plugins["dies"] = func(context.Context, delegatetest.Call) ([]byte, error) { runtime.Goexit(); return nil, nil }
	life := &lifecycle.Manager{Dir: h.state(), Invoker: &delegate.Invoker{Exec: h.Exec}}
	died := make(chan struct{})
	go func() {
		defer close(died)
		_, err := life.Attach(t.Context(), scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"},
			lifecycle.Transaction{Plan: lifecycle.Plan(delegate.Attachment{Network: green, ContainerID: "c1", IfName: "hot0"})})
		t.Errorf("it did not die: %v", err)
	}()
	<-died
	if out, err := h.tool(t, "list"); err != nil || !strings.Contains(strings.Join(strings.Fields(out), " "), "c1 - eth0 multi - cluster added") || !strings.Contains(strings.Join(strings.Fields(out), " "), "c1 - hot0 green - - incomplete") {
		t.Errorf("list: %v\n%s", err, out)
	}
	if out, err := h.tool(t, "status", "c1"); err != nil || !strings.Contains(out, `"eth0"`) || strings.Contains(out, "green") {
		t.Errorf("status: %v\n%s", err, out)
	}
}

// A state directory that cannot be read is an error, not an empty list.
func TestToolUnreadable(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.Write("state", "")
	for _, words := range [][]string{{"list"}, {"show", "c1"}, {"damaged"}, {"forget", "c1", "--yes"}} {
		_, err := h.tool(t, words...)
		wantError(t, err, 5, "state")
	}
}

// left returns the record files in h's state directory.
func (h *host) left(t *testing.T) string {
	t.Helper()
	var all []string
	for _, f := range programtest.Files(t, h.state()) {
		if strings.HasSuffix(f, ".json") {
			all = append(all, strings.TrimPrefix(f, h.state()+"/"))
		}
	}
	return strings.Join(all, " ")
}

// forget removes the records that the operator agrees to, and runs no plugin. The
// container can be added again.
func TestToolForget(t *testing.T) {
	t.Parallel()
	const all = "c1@multi@eth0.json gone@multi@eth0.json half@multi@eth0.json"
	for name, tt := range map[string]struct {
		words    []string
		terminal bool
		answer   string
		want     string // what is left
		errs     string
	}{
		"yes":                {words: []string{"forget", "gone", "--yes"}, want: "c1@multi@eth0.json half@multi@eth0.json"},
		"one key":            {words: []string{"forget", "gone", "multi", "eth0", "--yes"}, want: "c1@multi@eth0.json half@multi@eth0.json"},
		"json":               {words: []string{"forget", "gone", "--yes", "-o", "json"}, want: "c1@multi@eth0.json half@multi@eth0.json"},
		"not damaged":        {words: []string{"forget", "half"}, terminal: true, answer: "yes\n", want: "c1@multi@eth0.json gone@multi@eth0.json"},
		"asked, y":           {words: []string{"forget", "gone"}, terminal: true, answer: "y\n", want: "c1@multi@eth0.json half@multi@eth0.json"},
		"asked, n":           {words: []string{"forget", "gone"}, terminal: true, answer: "n\n", want: all, errs: "nothing was forgotten"},
		"asked, return":      {words: []string{"forget", "gone"}, terminal: true, answer: "\n", want: all, errs: "nothing was forgotten"},
		"asked, end":         {words: []string{"forget", "gone"}, terminal: true, want: all, errs: "nothing was forgotten"},
		"nobody to ask":      {words: []string{"forget", "gone"}, answer: "y\n", want: all, errs: "no terminal"},
		"no container":       {words: []string{"forget", "absent", "--yes"}, want: all, errs: "no record"},
		"no interface of it": {words: []string{"forget", "gone", "multi", "eth1", "--yes"}, want: all, errs: "no record"},
		"a delegate's names": {words: []string{"forget", "c1", "storage", "net1", "--yes"}, want: all, errs: "c1 storage net1: the container's records are of multi eth0: there is no record of it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := populated(t)
			h.Write("state/gone@multi@eth0.json", "garbage")
			if _, err := h.tool(t, "damaged"); err != nil {
				t.Fatal(err)
			}
			calls := len(h.Exec.Calls())
			var out, ask strings.Builder
			err := operate(t.Context(), append(tt.words, "--dir", h.state()), console{in: strings.NewReader(tt.answer), out: &out, ask: &ask, terminal: tt.terminal})
			if tt.errs == "" && err != nil || tt.errs != "" && (err == nil || !strings.Contains(err.Error(), tt.errs)) {
				t.Errorf("err = %v, want %q", err, tt.errs)
			}
			if got := h.left(t); got != tt.want {
				t.Errorf("left %q, want %q", got, tt.want)
			}
			if tt.terminal != strings.Contains(ask.String(), "multi/"+tt.words[1]+"/eth0: ") {
				t.Errorf("asked %q", ask.String())
			}
			if done := strings.Contains(out.String(), tt.words[1]); done != (err == nil) {
				t.Errorf("said %q", out.String())
			}
			if n := len(h.Exec.Calls()) - calls; n > 0 {
				t.Errorf("%d calls of plugins", n)
			}
			if err == nil {
				h.mustRun(t, "ADD", bridge, func(a *skel.CmdArgs) { a.ContainerID = tt.words[1] })
			}
		})
	}
}

// A container is found by the first 12 characters of its ID, unless another ID begins
// with them.
func TestToolTakesAShortContainerID(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.Write("netns", "")
	long := strings.Repeat("0123456789abcdef", 4)
	add := func(id string) { h.mustRun(t, "ADD", bridge, func(a *skel.CmdArgs) { a.ContainerID = id }) }
	add(long)
	for _, words := range [][]string{{"show", long[:12]}, {"status", long[:20]}, {"show", long}} {
		if out, err := h.tool(t, words...); err != nil || !strings.Contains(out, "10.9.0.2") {
			t.Errorf("%q: %v\n%s", words, err, out)
		}
	}
	for _, words := range [][]string{{"show", long[:11]}, {"show", long[1:13]}, {"forget", long[:11], "--yes"}} {
		if out, err := h.tool(t, words...); !errors.Is(err, errNoRecord) {
			t.Errorf("%q: %v\n%s", words, err, out)
		}
	}
	other := long[:63] + "0"
	add(other)
	for _, words := range [][]string{{"show", long[:12]}, {"status", long[:12]}, {"forget", long[:12], "multi", "eth0", "--yes"}} {
		if out, err := h.tool(t, words...); err == nil || !strings.Contains(err.Error(), "more than one container") || out != "" {
			t.Errorf("%q: %v\n%s", words, err, out)
		}
	}
	if out, err := h.tool(t, "forget", other, "--yes"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := h.tool(t, "forget", long[:12], "--yes"); err != nil || h.left(t) != "" {
		t.Errorf("%v\n%s", err, out)
	}
}

// forget waits for operations on the container, and keeps a record that they have
// changed.
func TestToolForgetTakesTheLock(t *testing.T) {
	t.Parallel()
	h := populated(t)
	l := h.lock(t, "half")
	ctx, cancel := context.WithCancel(t.Context())
	asked := func(p []byte) (int, error) {
		cancel() // it is about to wait for the lock
		return copy(p, "y\n"), nil
	}
	var out strings.Builder
	err := operate(ctx, []string{"forget", "half", "--dir", h.state()}, console{in: readFunc(asked), out: &out, ask: &out, terminal: true})
	wantError(t, err, 11, "half")
	nodetest.OK(t, l.Unlock())
	h.Exec.Plugins["both"] = delegatetest.Result(nil)
	changed := func(p []byte) (int, error) {
		h.mustRun(t, "DEL", bridge, func(a *skel.CmdArgs) { a.ContainerID = "half" })
		h.mustRun(t, "ADD", bridge, func(a *skel.CmdArgs) { a.ContainerID = "half" })
		return copy(p, "y\n"), nil
	}
	err = operate(t.Context(), []string{"forget", "half", "--dir", h.state()}, console{in: readFunc(changed), out: &out, ask: &out, terminal: true})
	if !errors.Is(err, errChanged) || !strings.Contains(h.left(t), "half") {
		t.Errorf("err = %v, left %s", err, h.left(t))
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }
