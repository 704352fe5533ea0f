package multinet

import (
	"io"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// What multinet itself does for a container with one network, and with four.
func BenchmarkADD(b *testing.B) {
	for name, more := range map[string]string{"alone": `"maxSelections":3`, "selected": annotated(`[{"name":"fast"},{"name":"storage","interface":"data"},{"name":"vendor"}]`)} {
		b.Run(name, func(b *testing.B) {
			h := newHost(b, "1.1.0")
			h.stdout = io.Discard
			h.Write("net.d/default/vendor.conf", `{"cniVersion":"1.0.0","name":"vendor","type":"macvlan","master":"eth1","mode":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/16"}]]}}`)
			conf := h.conf(keys(bridge, more))
			ofPod := func(a *skel.CmdArgs) { a.Args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=p" }
			b.ReportAllocs()
			for b.Loop() {
				nodetest.OK(b, h.call(b.Context(), "ADD", conf, ofPod))
				b.StopTimer()
				nodetest.OK(b, h.call(b.Context(), "DEL", conf))
				b.StartTimer()
			}
		})
	}
}
