package multinet

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// An ADD that takes longer than slowAfter writes one line to stderr, without the configuration
// of its delegates, unless the program around it is told.
func TestSlowADDIsLoggedOnce(t *testing.T) {
	t.Parallel()
	const (
		secret   = `"delegates":[{"type":"bridge","password":"hunter2"}]`
		failing  = `"delegates":[{"type":"bridge","password":"hunter2"},{"type":"full"}]`
		duration = ` duration=2s timing.lock=0s timing.record=0s timing.plugins="ADD bridge multi eth0 2s`
	)
	for name, tt := range map[string]struct {
		keys string
		told bool
		want string // the end of the line, or empty
	}{
		"longer than the limit":         {keys: secret + `,"slowAfter":"1999ms"`, want: duration + `"`},
		"as long as the default":        {keys: secret},
		"one that fails":                {keys: failing + `,"slowAfter":"1s"`, want: duration + `, ADD full multi net1 0s, DEL full multi net1 0s, DEL bridge multi eth0 0s"`},
		"one that waited for something": {keys: secret + `,"readinessindicatorfile":"/absent","readinessTimeout":"3s"`, want: ` duration=3s timing.lock=0s timing.record=0s timing.plugins=""`},
		"every one":                     {keys: secret + `,"slowAfter":"0s"`, want: duration + `"`},
		"none":                          {keys: secret + `,"slowAfter":"-1s"`},
		"in a daemon":                   {keys: secret + `,"slowAfter":"0s"`, told: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, "1.1.0")
				h.On("ADD bridge", func(context.Context, delegatetest.Call) error { time.Sleep(2 * time.Second); return nil })
				var stderr strings.Builder
				p := h.process()
				p.Stderr = &stderr
				if tt.told {
					p.Timed = func(lifecycle.Timing) {}
				}
				err := New(h.cluster).Do(t.Context(), p, delegate.CommandAdd, skel.CmdArgs{
					ContainerID: "c1", Netns: h.Path("netns"), IfName: "eth0", Args: "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p", StdinData: []byte(h.conf(tt.keys)),
				})
				if strings.Contains(tt.keys, "full") {
					nodetest.Code(t, err, 107)
				}
				_, line, _ := strings.Cut(stderr.String(), "level=")
				want := ""
				if tt.want != "" {
					want = `WARN msg="slow ADD" container=c1 ifname=eth0 network=multi pod=ns/p` + tt.want + "\n"
				}
				nodetest.Equal(t, "line", line, want)
			})
		})
	}
}
