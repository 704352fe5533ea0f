package thick

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/wire"
)

func TestCommandThatThePluginDoesNotHave(t *testing.T) {
	t.Parallel()
	f := &fake{}
	for _, verb := range []string{"CHECK", "GC", "STATUS"} {
		s := &Server{Commands: Commands{Add: f.Add, Del: f.Del}}
		post(t, s, "POST", wire.PathCNI, string(encoded(request(verb, "c1")))).want(t, 500, 4, "no "+verb)
	}
	f.want(t)
}

func TestBeginIsCalledAroundEachCommandButStatus(t *testing.T) {
	t.Parallel()
	type key struct{}
	for verb, want := range map[string]int64{"ADD": 1, "CHECK": 1, "DEL": 1, "GC": 1, "STATUS": 0, "ADD that is undone": 2, "ADD that panics": 2} {
		var begun, running atomic.Int64
		inside := func(ctx context.Context, _ *skel.CmdArgs) error {
			if n, _ := ctx.Value(key{}).(int64); n != begun.Load() || running.Load() != min(want, 1) {
				t.Errorf("%s: context of operation %d, %d are running", verb, n, running.Load())
			}
			return nil
		}
		f := &fake{check: inside, del: inside, gc: inside, status: inside, add: func(ctx context.Context, a *skel.CmdArgs) (types.Result, error) {
			switch verb {
			case "ADD that is undone":
				return nil, inside(ctx, a)
			case "ADD that panics":
				panic("on purpose")
			}
			return someResult(), inside(ctx, a)
		}}
		s := &Server{Commands: f.commands(), Begin: func(ctx context.Context) (context.Context, func()) {
			running.Add(1)
			return context.WithValue(ctx, key{}, begun.Add(1)), func() { running.Add(-1) }
		}}
		m := request(verb, "c1")
		if want == 2 {
			m = request("ADD", "c1")
		}
		post(t, s, "POST", wire.PathCNI, string(encoded(m)))
		if begun.Load() != want || running.Load() != 0 {
			t.Errorf("%s: begun %d times, want %d; %d are running", verb, begun.Load(), want, running.Load())
		}
	}
}
