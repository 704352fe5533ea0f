package dratest_test

import (
	"context"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
)

// The kubelet has a claim prepared for a pod, and released after its end.
func Example() {
	ctx := context.Background()
	k, err := dratest.Register(ctx, "/var/lib/kubelet/plugins_registry/net.example.com-reg.sock", "/")
	if err != nil {
		fmt.Println("nobody listens")
		return
	}
	defer func() { _ = k.Close() }()
	claim := &resourcev1.ResourceClaim{}
	prepared, err := k.Prepare(ctx, claim)
	fmt.Println(prepared[string(claim.UID)].Devices, err, k.Unprepare(ctx, claim))
	// Output: nobody listens
}
