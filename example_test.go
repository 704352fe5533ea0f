package metacni_test

import (
	"context"
	"fmt"
	"os"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// The life of an attachment, from ADD to DEL: in a plugin these are three
// processes. A real plugin leaves out Exec, and runs executables.
func Example() {
	ctx := context.Background()
	dir, _ := os.MkdirTemp("", "metacni")
	defer os.RemoveAll(dir)
	fake := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{
		"bridge": delegatetest.Result(nil), "tuning": delegatetest.Result(nil),
	}}

	pods, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"pods","plugins":[{"type":"bridge"},{"type":"tuning"}]}`))
	if err != nil {
		fmt.Println(status.Error(err)) // the failing plugin's CNI code, the full error text
	}
	life := &lifecycle.Manager{Dir: dir, Invoker: &delegate.Invoker{Exec: fake, Path: []string{"/opt/cni/bin"}, Env: os.Environ()}}
	key := scratch.Key{Network: "meta", ContainerID: "c1", IfName: "eth0"}

	_, err = life.Add(ctx, key, lifecycle.Transaction{ // recorded first, undone if anything fails
		Plan:   lifecycle.Plan(delegate.Attachment{Network: pods, ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0"}),
		Report: func(_ context.Context, added []delegate.Attached) error { return added[0].PrintTo(os.Stdout, "1.1.0") },
	})
	fmt.Println("ADD  ", err, fake.Live())
	fmt.Println("CHECK", life.Check(ctx, key, "/run/netns/c1"))                   // with what ADD used
	fmt.Println("DEL  ", life.Del(ctx, key, lifecycle.DelRequest{}), fake.Live()) // from the record
	// Output:
	// {"cniVersion":"1.1.0"}
	// ADD   <nil> [bridge c1 eth0 tuning c1 eth0]
	// CHECK <nil>
	// DEL   <nil> []
}
