package resident_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/resident"
)

// told returns a channel of the lists that d receives.
func told(d *resident.Plugin) chan []resident.Known {
	c := make(chan []resident.Known, 10)
	d.Synchronize = func(_ context.Context, known []resident.Known) error {
		c <- known
		return nil
	}
	return c
}

// The list has the configuration that the plugin received in ADD, and the
// result.
func TestResidentIsToldTheAttachmentsOfItsTypes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	one, two := attach(t, "c1", "a", "b", "a"), attach(t, "c2", "b")
	one.Args = "K8S_POD_NAME=x"
	three := attach(t, "c3", "a")
	n.Attachments = func(context.Context) ([]delegate.Attached, error) {
		return []delegate.Attached{
			{Attachment: one, Added: true, Result: json.RawMessage(`{"cniVersion":"1.1.0"}`)},
			{Attachment: two, Added: true, Result: json.RawMessage(`{"cniVersion":"1.1.0"}`)},
			{Attachment: three},
			{Attachment: attach(t, "c4", "a", "b"), Gone: []int{0}},
		}, nil
	}
	n.start()
	d := simple("10", "a")
	known := told(d)
	n.serve(d)
	with := json.RawMessage(`{"cniVersion":"1.1.0","name":"blue","prevResult":{"cniVersion":"1.1.0"},"type":"a"}`)
	without := json.RawMessage(`{"cniVersion":"1.1.0","name":"blue","type":"a"}`)
	want := []resident.Known{
		{Type: "a", ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Args: "K8S_POD_NAME=x", Config: with, Added: true},
		{Type: "a", ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Args: "K8S_POD_NAME=x", Config: with, Added: true},
		{Type: "a", ContainerID: "c3", NetNS: "/run/netns/c3", IfName: "eth0", Config: without},
	}
	if d := cmp.Diff(want, come(t, known, "what is attached")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// An operation that has used a type before its resident registers is waited
// for, so its change is in the list. One that uses the type later waits for the
// resident, so it is not. Other operations do not wait.
func TestListOfAttachmentsIsExact(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var attached atomic.Bool
	a := attach(t, "c1", "a")
	n.Attachments = func(context.Context) ([]delegate.Attached, error) {
		if !attached.Load() {
			return nil, nil
		}
		return []delegate.Attached{{Attachment: a, Result: json.RawMessage(`{"cniVersion":"1.1.0"}`)}}, nil
	}
	n.ReturnTimeout = patience
	n.start()
	n.serve(simple("20", "other"))

	before, end := n.Begin(t.Context())
	below := fakes("a")
	_, err := n.invoker(below).Add(before, a) // no resident has claimed it
	ok(t, err)
	idle, endIdle := n.Begin(t.Context())
	defer endIdle()
	x := fakes("a")
	d := newPlugin("10", "a", x)
	known := told(d)
	n.connect(d)
	for len(n.Plugins()) != 2 { // it has claimed its type
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
	// Other types do not wait.
	_, err = n.exec(before, "other", "ADD", "c0")
	ok(t, err)
	_, err = n.exec(idle, "other", "ADD", "c0")
	ok(t, err)
	later := make(chan error, 1)
	go func() {
		_, err := n.exec(idle, "a", "DEL", "c1")
		later <- err
	}()
	if got := n.states(); got[0] != "10-a joining" {
		t.Errorf("%q", got)
	}
	select {
	case <-known:
		t.Error("told while an operation goes on")
	case err := <-later:
		t.Errorf("called before it was told: %v", err)
	default:
	}
	attached.Store(true) // the last change of the operation
	end()
	end() // has no effect
	if got := come(t, known, "what is attached"); len(got) != 1 || got[0].ContainerID != "c1" {
		t.Errorf("%+v", got)
	}
	ok(t, come(t, later, "the call"))
	if d := cmp.Diff([]string{"DEL a eth0"}, x.Trace()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"ADD a eth0"}, below.Trace()); d != "" {
		t.Errorf("the Exec below (-want +got):\n%s", d)
	}
}

// When a resident claims a type after FindInPath has returned an executable,
// the resident is called.
func TestExecutableFoundBeforeTheClaimDoesNotRun(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	below := fakes("a")
	exec := n.Exec(below)
	path, err := exec.FindInPath("a", []string{"/opt/cni/bin"})
	ok(t, err)
	x := fakes("a")
	n.serve(newPlugin("10", "a", x))
	_, err = exec.ExecPlugin(t.Context(), path, []byte(`{"cniVersion":"1.1.0","name":"blue","type":"a"}`), []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=x", "CNI_IFNAME=eth0", "CNI_PATH=x", "CNI_NETNS_OVERRIDE=1",
	})
	ok(t, err)
	if d := cmp.Diff([]string{"ADD a eth0"}, x.Trace()); d != "" || len(below.Trace()) > 0 {
		t.Errorf("the Exec below: %q (-want +got):\n%s", below.Trace(), d)
	}
}

// Its types are free afterwards, and calls that waited for it fail with code
// 11.
func TestResidentIsRefusedWhenItCannotBeToldTheAttachments(t *testing.T) {
	t.Parallel()
	broken := errors.New("a record is broken")
	for name, tt := range map[string]struct {
		attachments error
		synchronize func(context.Context) error
		want        string
	}{
		"it fails":          {nil, func(context.Context) error { return types.NewError(120, "table is full", "") }, "table is full"},
		"it panics":         {nil, func(context.Context) error { panic("secret") }, "the plugin panicked"},
		"it hangs":          {nil, func(ctx context.Context) error { <-ctx.Done(); return nil }, "no answer in time"},
		"nobody knows what": {broken, func(context.Context) error { return nil }, "a record is broken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if name == "it hangs" {
				n.RegisterTimeout = 2 * time.Second
			}
			fail := true
			n.Attachments = func(context.Context) ([]delegate.Attached, error) {
				if fail {
					return nil, tt.attachments
				}
				return nil, nil
			}
			n.start()
			d := simple("10", "a")
			d.Synchronize = func(ctx context.Context, _ []resident.Known) error { return tt.synchronize(ctx) }
			r := n.connect(d)
			s := n.await("10-a refused", 1)
			if !strings.Contains(s.Err.Error(), tt.want) {
				t.Errorf("err = %v", s.Err)
			}
			if err := come(t, r.err, "the end"); !errors.Is(err, resident.ErrLost) {
				t.Errorf("err = %v", err)
			}
			if got := n.states(); len(got) != 0 {
				t.Errorf("left: %q", got)
			}
			fail = false
			n.serve(newPlugin("20", "b", fakes("a"), "a"))
			_, err := n.exec(t.Context(), "a", "ADD", "c1")
			ok(t, err)
		})
	}
}

// A call that waits for a registration ends with its context, and when the
// registration fails. It has executed nothing.
func TestCallsThatWaitForARegistrationEnd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.RegisterTimeout, n.ReturnTimeout = time.Hour, patience
	n.start()
	in, out := make(chan struct{}), make(chan error)
	d := simple("10", "a")
	d.Synchronize = func(context.Context, []resident.Known) error {
		close(in)
		return <-out
	}
	n.connect(d)
	come(t, in, "the synchronization")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := n.exec(ctx, "a", "ADD", "c1")
	wantCode(t, err, 11)
	if !errors.Is(err, delegate.ErrNotRun) || !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := n.exec(t.Context(), "a", "ADD", "c1")
		waiting <- err
	}()
	out <- errors.New("no")
	err = come(t, waiting, "the call")
	// It may have begun after the registration had failed.
	wantCode(t, err, 11)
	if !errors.Is(err, delegate.ErrNotRun) {
		t.Errorf("err = %v", err)
	}
}
