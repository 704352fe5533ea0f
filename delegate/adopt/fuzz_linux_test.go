package adopt_test

import "testing"

// No file makes a reader panic, and what it makes of one can be recorded or is
// refused.
func FuzzFiles(f *testing.F) {
	f.Add([]byte(text("cniCacheV1", "c1", cbr, `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/24"}]}`)))
	f.Add([]byte("[" + saved(cbr, "") + "," + saved(storage, `,"ifnameRequest":"x"`) + "]"))
	f.Add([]byte(ofFlannel))
	f.Add([]byte(`[{"Conf":[],"ConfList":5,"Bytes":null}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		w := newWorld(t)
		w.write("cni/results/cbr-c1-eth0", string(data))
		w.write("multus/results/cbr-c1-eth0", string(data))
		w.old(w.write("multus/c1", string(data)))
		w.write("flannel/c1", string(data))
		w.take(w.node.Attachments(), false)
		_, _ = w.flannel().Attachment(at(""))
		for _, err := range w.life.Records(t.Context()) {
			if err != nil {
				t.Error(err)
			}
		}
	})
}
