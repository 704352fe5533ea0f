package resident_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/resident"
)

// hangs returns a plugin that hangs in the ADD of container "hang" until the
// test ends, even when its context ends.
func hangs(t *testing.T) delegatetest.Plugin {
	t.Helper()
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return func(_ context.Context, c delegatetest.Call) ([]byte, error) {
		if c.ContainerID == "hang" && c.Command == "ADD" {
			<-over
		}
		return []byte(`{"cniVersion":"1.1.0"}`), nil
	}
}

// Only the host's own timeouts count against a resident.
func TestDeadlineOfTheCallerDisconnectsNobody(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(with("10", "p", hangs(t)))
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := n.exec(ctx, "p", "ADD", "hang")
		cancel()
		wantCode(t, err, 11)
		if errors.Is(err, resident.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v", err)
		}
	}
	if d := cmp.Diff([]string{"10-p ready"}, n.states()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// An error of a plugin does not count as a missing answer.
func TestErrorsAreAnswers(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(newPlugin("10", "d", &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{
		"a": delegatetest.Result(nil), "b": delegatetest.FailOn("ADD", 107, "no device", delegatetest.Result(nil)), "c": delegatetest.Result(nil),
	}}, "a", "b", "c"))
	x := fakes("below")
	_, err := n.invoker(x).Add(t.Context(), attach(t, "c1", "below", "a", "b", "c"))
	wantCode(t, err, 107)
	if live := x.Live(); len(live) > 0 {
		t.Errorf("alive: %q", live)
	}
	if d := cmp.Diff([]string{"10-d ready"}, n.states()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// An invalid answer makes an ADD fail, which is undone. Other calls are not
// affected, and the connection stays.
func TestAddWithAnInvalidAnswerIsUndone(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("x"), 16<<20) // a message has at most 8 MiB
	for name, tt := range map[string]struct {
		answer []byte
		code   uint
	}{
		"16 MiB":         {large, 999},
		"garbage":        {[]byte("garbage\x00\xff"), 6},
		"nothing":        {nil, 6},
		"two documents":  {[]byte(`{"cniVersion":"1.1.0"}{"cniVersion":"1.1.0"}`), 6},
		"a list":         {[]byte(`[]`), 6},
		"other versions": {[]byte(`{"cniVersion":"9.9.9"}`), 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t).start()
			n.serve(simple("20", "other"))
			x := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{
				"p": func(_ context.Context, c delegatetest.Call) ([]byte, error) {
					if c.Command == "ADD" && c.ContainerID == "bad" {
						return tt.answer, nil
					}
					return []byte(`{"cniVersion":"1.1.0"}`), nil
				},
			}}
			n.serve(newPlugin("10", "p", x))
			done := make(chan error)
			for i := range 10 { // at the same time
				go func() {
					_, err := n.exec(t.Context(), []string{"p", "other"}[i%2], "ADD", fmt.Sprint("c", i))
					done <- err
				}()
			}
			_, err := n.invoker(nil).Add(t.Context(), attach(t, "bad", "p"))
			wantCode(t, err, tt.code)
			for range 10 {
				ok(t, come(t, done, "an answer"))
			}
			for _, live := range x.Live() {
				if live == "p bad eth0" {
					t.Error("it was not undone")
				}
			}
			if d := cmp.Diff([]string{"20-other ready", "10-p ready"}, n.seen()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// A call during which the resident dies fails with code 11, and may have been
// executed.
func TestCallIsLostWhenTheResidentDies(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	var r *served
	n.serve(simple("20", "other"))
	r = n.serve(with("10", "p", func(context.Context, delegatetest.Call) ([]byte, error) {
		r.stop() // DrainTimeout is short, so this is like a death
		select {}
	}))
	_, err := n.exec(t.Context(), "p", "ADD", "c1")
	wantCode(t, err, 11)
	if !errors.Is(err, resident.ErrLost) || errors.Is(err, delegate.ErrNotRun) {
		t.Errorf("err = %v", err)
	}
	_, err = n.exec(t.Context(), "other", "ADD", "c1")
	ok(t, err)
}

// The text of an error contains neither configuration nor environment.
func TestErrorsContainNoConfiguration(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.CallTimeout = time.Millisecond
	n.start()
	n.serve(with("10", "p", hangs(t)))
	x := n.Exec(&delegatetest.Exec{})
	path, err := x.FindInPath("p", nil)
	ok(t, err)
	conf, err := json.Marshal(map[string]string{"cniVersion": "1.1.0", "name": "blue", "type": "p", "password": "hunter2!"})
	ok(t, err)
	for range 4 {
		_, err = x.ExecPlugin(t.Context(), path, conf, []string{
			"CNI_COMMAND=ADD", "CNI_CONTAINERID=hang", "CNI_NETNS=x", "CNI_IFNAME=eth0", "CNI_PATH=x", "TOKEN=hunter2!",
		})
		if err == nil || bytes.Contains([]byte(err.Error()), []byte("hunter2")) {
			t.Errorf("err = %v", err)
		}
	}
}

// Calls that time out at the same time count as calls in a row.
func TestConcurrentTimeoutsDisconnectAResident(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.CallTimeout = 10 * time.Millisecond
	n.start()
	n.serve(with("10", "p", hangs(t)))
	errs := make(chan error)
	for range 10 {
		go func() {
			_, err := n.exec(t.Context(), "p", "ADD", "hang")
			errs <- err
		}()
	}
	for range 10 {
		wantCode(t, come(t, errs, "the end of a call"), 11)
	}
	s := n.await("10-p gone", 1)
	if !errors.Is(s.Err, resident.ErrTimeout) {
		t.Errorf("gone for %v", s.Err)
	}
}
