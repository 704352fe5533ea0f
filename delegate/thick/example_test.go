package thick_test

import (
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate/thick"
)

// A plugin that is written for a main becomes a daemon. What its shim would
// post is posted here without one, and without a socket.
func Example() {
	commands := func(_ context.Context, stdout io.Writer) skel.CNIFuncs {
		return skel.CNIFuncs{
			Add: func(a *skel.CmdArgs) error {
				r := &types100.Result{CNIVersion: "1.0.0", Interfaces: []*types100.Interface{{Name: a.IfName}}}
				return r.PrintTo(stdout)
			},
			Del: func(a *skel.CmdArgs) error { return types.NewError(11, a.IfName+" is busy", "") },
		}
	}
	s := &thick.Server{Commands: thick.Funcs(commands)}

	// The configuration is {"name":"pods"}.
	const message = `{"env":{"CNI_COMMAND":%q,"CNI_CONTAINERID":"c1","CNI_NETNS":"/run/netns/c1"},"config":"eyJuYW1lIjoicG9kcyJ9"}`
	for _, verb := range []string{"ADD", "DEL", "CHECK", "UPDATE"} {
		r := httptest.NewRequest("POST", "/cni", strings.NewReader(fmt.Sprintf(message, verb)))
		w := httptest.NewRecorder()
		s.HTTP().ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 {"Result":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}]}}
	// 500 {"code":11,"msg":"eth0 is busy"}
	// 500 {"code":4,"msg":"the plugin has no CHECK"}
	// 400 {"code":4,"msg":"thick: unknown CNI_COMMAND \"UPDATE\""}
}
