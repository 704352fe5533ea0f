package multinet

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

// The result is the first network's, in the version that the runtime asked for,
// whatever the delegate's version is.
func TestResultHasTheVersionAskedFor(t *testing.T) {
	t.Parallel()
	for _, asked := range version.All.SupportedVersions() {
		for _, delegate := range []string{"", "0.2.0", "0.3.1", "1.0.0", "1.1.0"} {
			h := newHost(t, asked)
			own := ""
			if delegate != "" {
				own = `,"cniVersion":"` + delegate + `"`
			}
			h.mustRun(t, "ADD", keys(`"delegates":[{"type":"bridge"`+own+`},{"type":"tuning"}]`))
			printed := h.printed.Bytes()
			var v struct{ CNIVersion string }
			if err := json.Unmarshal(printed, &v); err != nil || v.CNIVersion != asked {
				t.Fatalf("asked %s of a delegate of %q: printed %s (%v)", asked, delegate, printed, err)
			}
			r, err := create.Create(asked, printed)
			if err != nil {
				t.Fatalf("%s: %v", printed, err)
			}
			got, err := types100.NewResultFromResult(r)
			if err != nil || len(got.IPs) != 1 || got.IPs[0].Address.String() != "10.9.0.2/24" {
				t.Errorf("asked %s of a delegate of %q: %s (%v)", asked, delegate, printed, err)
			}
		}
	}
}

func TestConfigurationWithoutVersionIs010(t *testing.T) {
	t.Parallel()
	h := newHost(t, "")
	nodetest.OK(t, h.call(t.Context(), "ADD", strings.Replace(h.conf(bridge), `"cniVersion":"",`, "", 1)))
	if got := h.printed.String(); !strings.Contains(got, `"0.1.0"`) || !strings.Contains(got, `"ip4"`) {
		t.Errorf("printed %s", got)
	}
}

// An ADD whose result cannot be printed is undone.
func TestFailedReportUndoesADD(t *testing.T) {
	t.Parallel()
	t.Run("result that cannot be expressed", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, "0.2.0")
		h.exec.Plugins["bridge"] = delegatetest.Result(&types100.Result{CNIVersion: "1.1.0"}) // 0.2.0 has no result without an address
		err := h.run(t, "ADD", `"delegates":[{"type":"bridge","cniVersion":"1.0.0"},{"type":"tuning","cniVersion":"1.0.0"}]`)
		wantError(t, err, 1, "0.2.0")
		wantTrace(t, h, "ADD bridge eth0", "ADD tuning net1", "DEL tuning net1", "DEL bridge eth0")
		h.clean(t)
		if h.printed.Len() > 0 {
			t.Errorf("printed %s", h.printed.String())
		}
	})
	t.Run("nobody reads", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, "1.0.0")
		h.stdout = brokenPipe{}
		wantError(t, h.run(t, "ADD", keys(bridge, annotated("storage"))), 5, "broken pipe")
		wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1", "ADD tuning net1", "DEL tuning net1", "DEL macvlan net1", "DEL bridge eth0")
		h.clean(t)
	})
	t.Run("undoing fails", func(t *testing.T) {
		t.Parallel()
		h := newHost(t, "1.0.0")
		h.stdout = brokenPipe{}
		wantError(t, h.run(t, "ADD", `"delegates":[{"type":"stuck"},{"type":"bridge"}]`), 5, "broken pipe", "device is busy", `"stuck"`)
		wantTrace(t, h, "ADD stuck eth0", "ADD bridge net1", "DEL bridge net1", "DEL stuck eth0")
		// The record stays as long as DEL fails.
		wantError(t, h.run(t, "DEL", ""), 108, `"stuck"`)
		wantError(t, h.run(t, "DEL", ""), 108, `"stuck"`)
		h.exec.Plugins["stuck"] = delegatetest.Result(nil)
		h.mustRun(t, "DEL", "")
		h.clean(t)
	})
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// The error of a delegate keeps its code and names network and plugin. What ran is
// undone.
func TestDelegateFails(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	err := h.run(t, "ADD", `"delegates":[{"type":"bridge"},{"name":"second","plugins":[{"type":"macvlan"},{"type":"full"},{"type":"tuning"}]}]`)
	wantError(t, err, 107, `"second"`, `"full"`, "net1", "no free device")
	wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1", "ADD full net1", "DEL full net1", "DEL macvlan net1", "DEL bridge eth0")
	h.clean(t)
}

// When the context ends, as after a signal, a delegate that hangs is ended and the ADD
// is undone with code 11.
func TestEndOfContextUndoesADD(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.0.0")
	ctx, cancel := context.WithCancel(t.Context())
	h.exec.Plugins["hung"] = delegatetest.Result(nil)
	hung := delegatetest.HangOn("ADD", delegatetest.Result(nil))
	h.exec.Plugins["hung"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			cancel()
		}
		return hung(ctx, c)
	}
	err := h.call(ctx, "ADD", h.conf(`"delegates":[{"type":"bridge"},{"type":"hung"}]`))
	wantError(t, err, 11, `"hung"`)
	wantTrace(t, h, "ADD bridge eth0", "ADD hung net1", "DEL hung net1", "DEL bridge eth0")
	h.clean(t)
}
