package resident_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/netconf"
)

// An updater notes what is asked for, as "10-a attach c1 net1 blue".
type updater struct {
	mu  sync.Mutex
	got []string
}

func (u *updater) update(_ context.Context, from resident.Info, what resident.Update) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.got = append(u.got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s", from, what.Op, what.ContainerID, what.IfName, what.Network.Name())))
	if what.ContainerID == "full" {
		return fmt.Errorf("attaching: %w", types.NewError(107, "no device", ""))
	}
	return nil
}

// A resident asks for updates of its own accord; those that fail are listed in
// the answer, each with its code, and the others are done.
func TestRequestsListTheirFailures(t *testing.T) {
	t.Parallel()
	n, u := newNode(t), &updater{}
	n.Update = u.update
	n.start()
	r := n.serve(simple("10", "a"))
	blue := network(t, "blue", "x")
	us := []resident.Update{
		{Op: resident.Attach, ContainerID: "c1", IfName: "net1", Network: blue},
		{Op: resident.Attach, ContainerID: "full", Network: blue},
		{Op: resident.Detach, ContainerID: "c1", IfName: "net2"},
		// What cannot be done is refused before anybody is asked.
		{Op: "explode", ContainerID: "c1", IfName: "net2"},
		{Op: resident.Detach, ContainerID: "../c1", IfName: "net2"},
		{Op: resident.Detach, ContainerID: "c1"},
		{Op: resident.Attach, ContainerID: "c1", IfName: "a/b", Network: blue},
		{Op: resident.Attach, ContainerID: "c1", Network: netconf.Network{}},
	}
	failed, err := r.Request(t.Context(), us...)
	ok(t, err)
	if d := cmp.Diff([]string{"10-a attach c1 net1 blue", "10-a attach full  blue", "10-a detach c1 net2"}, u.got); d != "" {
		t.Errorf("asked for (-want +got):\n%s", d)
	}
	var got []string
	for _, f := range failed {
		at := slices.IndexFunc(us, func(u resident.Update) bool {
			return u.Op == f.Op && u.ContainerID == f.ContainerID && u.IfName == f.IfName
		})
		got = append(got, fmt.Sprintf("%d: %d", at, f.Err.Code))
	}
	if d := cmp.Diff([]string{"1: 107", "3: 4", "4: 4", "5: 4", "6: 4", "7: 6"}, got); d != "" {
		t.Errorf("failed (-want +got):\n%s", d)
	}
	if text := failed[0].Err.Error(); !strings.Contains(text, "no device") {
		t.Error(text)
	}
}

// It may do so from inside a call, and have the plugins of that called meanwhile,
// itself too; no lock is in the way.
func TestRequestFromInsideACall(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Update = func(ctx context.Context, _ resident.Info, u resident.Update) error {
		_, err := n.exec(ctx, "a", "ADD", u.ContainerID)
		return err
	}
	n.start()
	var d *resident.Plugin
	d = with("10", "a", func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.ContainerID != "c1" {
			return nil, nil
		}
		failed, err := d.Request(ctx, resident.Update{Op: resident.Attach, ContainerID: "c2", Network: network(t, "blue", "a")})
		if len(failed) > 0 {
			err = failed[0].Err
		}
		return nil, err
	})
	n.serve(d)
	_, err := n.exec(t.Context(), "a", "ADD", "c1")
	ok(t, err)
}

// Requests fail with a reason when there is nobody, or nobody who takes them,
// and when that ends meanwhile.
func TestRequestsThatFailSayWhy(t *testing.T) {
	t.Parallel()
	d := simple("10", "a")
	u := resident.Update{Op: resident.Detach, ContainerID: "c1", IfName: "net1"}
	if _, err := d.Request(t.Context(), u); !errors.Is(err, resident.ErrGone) {
		t.Errorf("not connected: %v", err)
	}
	n := newNode(t).start()
	n.serve(d)
	if _, err := d.Request(t.Context(), u); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("not taken: %v", err)
	}

	n = newNode(t)
	in := make(chan struct{})
	n.Update = func(ctx context.Context, _ resident.Info, _ resident.Update) error {
		in <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	n.start()
	d = simple("10", "a")
	r := n.serve(d)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := d.Request(ctx, u)
		result <- err
	}()
	come(t, in, "the request")
	cancel()
	if err := come(t, result, "the end"); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	go func() {
		_, err := d.Request(t.Context(), u)
		result <- err
	}()
	come(t, in, "the request")
	r.stop()
	if err := come(t, result, "the end"); !errors.Is(err, resident.ErrLost) {
		t.Errorf("err = %v", err)
	}
	ok(t, n.Stop(t.Context())) // nothing of them is left
}

// A resident that asks in no language is closed.
func TestResidentThatAsksForNothingKnownIsClosed(t *testing.T) {
	t.Parallel()
	for name, say := range map[string]string{
		"garbage": "garbage\n", "too long": strings.Repeat("x", 2<<20), "other JSON": "[]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.Update = (&updater{}).update
			n.start()
			n.serve(simple("20", "other"))
			n.askByHand("10", "a", say)
			s := n.await("10-a gone", 1)
			if !strings.Contains(s.Err.Error(), "not the line of JSON expected") {
				t.Errorf("gone for %v", s.Err)
			}
			_, err := n.exec(t.Context(), "other", "ADD", "c1")
			ok(t, err)
		})
	}
}

// askByHand registers a resident that says something where it should ask for
// updates.
func (n *node) askByHand(index, name, say string) {
	n.t.Helper()
	p := n.dial().say(hello(index, name, name))
	if w := p.hear(); w.Error != "" {
		n.t.Fatal(w.Error)
	}
	_, stop := serveHTTP(p, func(path string, w io.Writer) {
		if path == "/requests" {
			_, _ = io.WriteString(w, say)
		}
	})
	n.t.Cleanup(stop)
}
