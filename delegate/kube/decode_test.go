package kube

import (
	"encoding/json"
	"fmt"
	"testing"
)

// aDefinition is one as an API server sends it, with the metadata that kubectl leaves.
func aDefinition(i int) []byte {
	config, _ := json.Marshal(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net-%d","plugins":[{"type":"bridge","bridge":"br%d","vlan":%d,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/16"}]]}},{"type":"tuning","sysctl":{"net.core.somaxconn":"500"}}]}`, i, i, i))
	return fmt.Appendf(nil, `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"annotations":{"k8s.v1.cni.cncf.io/resourceName":"intel.com/sriov"},"creationTimestamp":"2026-11-22T10:00:00Z","generation":1,"managedFields":[{"apiVersion":"k8s.cni.cncf.io/v1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:k8s.v1.cni.cncf.io/resourceName":{}}},"f:spec":{".":{},"f:config":{}}},"manager":"kubectl-client-side-apply","operation":"Update","time":"2026-11-22T10:00:00Z"}],"name":"net-%d","namespace":"default","resourceVersion":"%d","uid":"0b6a1c5e-6b1e-4b6e-9b5d-0d6a1c5e6b1e"},"spec":{"config":%s}}`, i, 1000+i, config)
}

// A watch brings each definition at the start of a daemon, one after the other.
func BenchmarkDecodeDefinition(b *testing.B) {
	data := aDefinition(1)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		var d definition
		if err := json.Unmarshal(data, &d); err != nil || d.err != nil {
			b.Fatal(err, d.err)
		}
	}
}
