package thick

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// A meta is a plugin that attaches two networks and keeps records.
type meta struct {
	*lifecycle.Manager

	nets []netconf.Network
}

func newMeta(t *testing.T, plugins map[string]delegatetest.Plugin) (*meta, *delegatetest.Exec) {
	t.Helper()
	exec := &delegatetest.Exec{Plugins: plugins}
	m := &meta{Manager: &lifecycle.Manager{Invoker: &delegate.Invoker{Exec: exec}, Dir: t.TempDir()}}
	for _, name := range []string{"blue", "red"} {
		n, err := netconf.Parse([]byte(fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"type":%q}`, name, name)))
		nodetest.OK(t, err)
		m.nets = append(m.nets, n)
	}
	return m, exec
}

func (m *meta) commands() Commands {
	return Commands{Add: m.Add, Check: m.Check, Del: m.Del, GC: m.GC, Status: m.Status}
}

func (m *meta) key(a *skel.CmdArgs) scratch.Key {
	return scratch.Key{Network: "pods", ContainerID: a.ContainerID, IfName: a.IfName}
}

func (m *meta) Add(ctx context.Context, a *skel.CmdArgs) (types.Result, error) {
	added, err := m.Manager.Add(ctx, m.key(a), lifecycle.Transaction{Plan: lifecycle.Plan(
		delegate.Attachment{Network: m.nets[0], ContainerID: a.ContainerID, IfName: a.IfName},
		delegate.Attachment{Network: m.nets[1], ContainerID: a.ContainerID, IfName: "net1"},
	)})
	if err != nil {
		return nil, err
	}
	return create.CreateFromBytes(added[0].Result)
}

func (m *meta) Check(ctx context.Context, a *skel.CmdArgs) error {
	return m.Manager.Check(ctx, m.key(a))
}

func (m *meta) Del(ctx context.Context, a *skel.CmdArgs) error {
	its := &lifecycle.Manager{Invoker: m.Invoker, Dir: m.Dir}
	its.Stale, _ = ctx.Value(staleKey{}).(func(time.Time) (bool, error)) // as in CommandsOf
	return its.Del(ctx, lifecycle.Removal{Key: m.key(a), NetNS: a.Netns})
}

func (m *meta) GC(ctx context.Context, _ *skel.CmdArgs) error {
	return m.Manager.GC(ctx, lifecycle.Collection{Network: "pods", Valid: []types.GCAttachment{}})
}

func (m *meta) Status(ctx context.Context, _ *skel.CmdArgs) error {
	return m.Manager.Status(ctx, m.nets)
}

// Whenever a shim dies, a DEL comes or the daemon stops, nothing that
// an ADD did stays that is not recorded, and nothing at all after the DEL.
func TestNothingUnrecordedStaysWhateverEndsAnAdd(t *testing.T) {
	t.Parallel()
	works := delegatetest.Result(nil)
	for window, plugins := range map[string]map[string]delegatetest.Plugin{
		"first": {"blue": delegatetest.HangOn("ADD", works), "red": works},
		"last":  {"blue": works, "red": delegatetest.HangOn("ADD", works)},
		// It does not heed its end, and succeeds.
		"after": {"blue": works, "red": func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
			if c.Command == "ADD" {
				<-ctx.Done()
			}
			return works(ctx, c)
		}},
	} {
		for end, by := range map[string]func(r *rig, kill context.CancelFunc){
			"client gone":    func(_ *rig, kill context.CancelFunc) { kill() },
			"daemon stopped": func(r *rig, _ context.CancelFunc) { r.stop() },
			"both":           func(r *rig, kill context.CancelFunc) { kill(); r.stop() },
			"deadline":       func(*rig, context.CancelFunc) { time.Sleep(2 * time.Minute) },
			"DEL": func(r *rig, _ context.CancelFunc) {
				r.do(request("DEL", "c1")).wantOK(r.t)
			},
		} {
			t.Run(window+", "+end, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					m, exec := newMeta(t, plugins)
					r := serve(t, &Server{Commands: m.commands(), DrainTimeout: time.Second})
					ctx, kill := context.WithCancel(t.Context())
					defer kill()
					add := r.beginUntil(ctx, request("ADD", "c1"))
					synctest.Wait()
					if len(exec.Live()) == 0 {
						t.Fatal("nothing has begun")
					}
					by(r, kill)
					a := add()
					time.Sleep(time.Minute)
					synctest.Wait()
					if live := exec.Live(); a.status != 200 && len(live) != 0 {
						t.Errorf("after %d %s: alive %q", a.status, a.body, live)
					}
					if end == "daemon stopped" || end == "both" {
						<-r.done
						r = serve(t, &Server{Commands: m.commands()})
					}
					r.do(request("DEL", "c1")).wantOK(t)
					if live := exec.Live(); len(live) != 0 {
						t.Errorf("alive %q", live)
					}
					for rec := range m.Records(t.Context()) {
						t.Errorf("recorded: %+v", rec)
					}
				})
			})
		}
	}
}
