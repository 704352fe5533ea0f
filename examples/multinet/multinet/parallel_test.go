package multinet

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/scratch"
)

// inPairs returns p with a wait in ADD and DEL until two of them are running.
func inPairs(p delegatetest.Plugin) delegatetest.Plugin {
	here := make(chan struct{})
	return func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" || c.Command == "DEL" {
			select {
			case here <- struct{}{}:
			case <-here:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return p(ctx, c)
	}
}

// With "parallel" all networks except the first are attached at once, and all are
// detached at once. DEL goes by its own configuration. Errors and records are in the
// order of the configuration.
func TestParallel(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	h.exec.Plugins["macvlan"] = inPairs(delegatetest.Result(result("10.9.1.2/24")))
	conf := keys(`"delegates":[{"type":"bridge"},{"type":"macvlan","name":"x"},{"type":"macvlan","name":"y"}]`, `"parallel":true`)
	h.mustRun(t, "ADD", conf)
	trace := h.trace()
	slices.Sort(trace[1:])
	if d := cmp.Diff([]string{"ADD bridge eth0", "ADD macvlan net1", "ADD macvlan net2"}, trace); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
	var printed types100.Result
	if err := json.Unmarshal(h.printed.Bytes(), &printed); err != nil || len(printed.IPs) != 1 || printed.IPs[0].Address.String() != "10.9.0.2/24" {
		t.Errorf("printed %s: %v", &h.printed, err)
	}
	var recorded []string
	for r, err := range (&lifecycle.Manager{Dir: h.state()}).Records(t.Context()) {
		if err != nil || r.State != scratch.Added {
			t.Errorf("%s: %s, %v", r.Key, r.State, err)
		}
		for _, a := range r.Attached {
			recorded = append(recorded, a.Network.Name()+" "+a.IfName)
		}
	}
	if d := cmp.Diff([]string{"multi eth0", "x net1", "y net2"}, recorded); d != "" {
		t.Errorf("recorded (-want +got):\n%s", d)
	}
	h.mustRun(t, "DEL", conf)
	trace = h.trace()
	slices.Sort(trace)
	if d := cmp.Diff([]string{"DEL bridge eth0", "DEL macvlan net1", "DEL macvlan net2"}, trace); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
	h.clean(t)
}

// Without "parallel" networks are attached one after another.
func TestNotParallel(t *testing.T) {
	t.Parallel()
	delegates := `"delegates":[{"type":"bridge"},{"type":"macvlan","name":"x"},{"type":"macvlan","name":"y"}]`
	for _, parallel := range []string{`"x":1`, `"parallel":false`, `"parallel":null`} {
		h := newHost(t, "1.0.0")
		busy := make(chan struct{}, 1)
		h.exec.Script = func(_ int, c delegatetest.Call, p delegatetest.Plugin) delegatetest.Plugin {
			return func(ctx context.Context, _ delegatetest.Call) ([]byte, error) {
				select {
				case busy <- struct{}{}:
				default:
					t.Errorf("%s: %s beside another", parallel, c)
				}
				defer func() { <-busy }()
				return p(ctx, c)
			}
		}
		h.mustRun(t, "ADD", keys(delegates, parallel))
		h.mustRun(t, "DEL", keys(delegates, parallel))
		if got := strings.Join(h.trace(), ", "); got != "ADD bridge eth0, ADD macvlan net1, ADD macvlan net2, DEL macvlan net2, DEL macvlan net1, DEL bridge eth0" {
			t.Errorf("%s: %s", parallel, got)
		}
		h.clean(t)
	}
}
