package adopt_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

// A file that cannot be used is reported by its name, with the reason, and hides no other. It
// is not changed.
func TestBadFilesAreSkippedAndReported(t *testing.T) {
	t.Parallel()
	const result = `{"cniVersion":"1.0.0","ips":[]}`
	good, state := text("cniCacheV1", "c1", cbr, result), "["+saved(cbr, "")+"]"
	for _, tt := range []struct {
		name, file, text string
		want             string // in the reason; empty: it is nobody's concern
	}{
		{"empty", "cni/results/cbr-c1-eth0", "", "empty"},
		{"torn", "cni/results/cbr-c1-eth0", good[:len(good)/2], "incomplete"},
		{"not JSON", "cni/results/cbr-c1-eth0", "\x00\x01", "incomplete"},
		{"a list", "cni/results/cbr-c1-eth0", "[]", "incomplete"},
		{"null", "cni/results/cbr-c1-eth0", "null", `of kind ""`},
		{"another type", "cni/results/cbr-c1-eth0", `{"kind":5}`, "incomplete"},
		{"no base64", "cni/results/cbr-c1-eth0", `{"kind":"cniCacheV1","config":"%"}`, "incomplete"},
		{"a result alone, as before libcni 0.8", "cni/results/cbr-c1-eth0", result, `of kind ""`},
		{"another version", "cni/results/cbr-c1-eth0", text("cniCacheV2", "c1", cbr, result), `of kind "cniCacheV2"`},
		{"too large", "cni/results/cbr-c1-eth0", good + strings.Repeat(" ", 1<<20), "too large"},
		{"another's name", "cni/results/cbr-c2-eth0", good, "the file name does not match"},
		{"a container that is none", "cni/results/cbr--c1-eth0", text("cniCacheV1", "-c1", cbr, result), "-c1"},
		{"a container that is a path", "cni/results/cbr-..-eth0", text("cniCacheV1", "..", cbr, result), ".."},
		{"no container", "cni/results/cbr--eth0", text("cniCacheV1", "", cbr, result), "containerID"},
		{"no interface", "cni/results/cbr-c1-", fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"c1","config":%q,"networkName":"cbr"}`, b64(cbr)), "interface"},
		{"no configuration", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", "", result), "JSON"},
		{"no plugins", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", `{"name":"cbr"}`, result), "plugins"},
		{"a configuration with a key twice", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", `{"name":"cbr","name":"cbr","type":"bridge"}`, result), "twice"},
		{"of another network inside", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", strings.ReplaceAll(cbr, "cbr", "x"), result), `network "x"`},
		{"a result that is none", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", cbr, `"x"`), "result"},
		{"a result with null in it", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", cbr, `{"cniVersion":"1.0.0","interfaces":[null]}`), "cannot decode result"},
		{"a result of a version to come", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", cbr, `{"cniVersion":"9.0.0"}`), "9.0.0"},
		{"an entry of another network of the runtime", "cni/results/x-c1-eth0", "", ""},
		{"torn state of Multus", "multus/c1", state[:len(state)-4], "incomplete"},
		{"state of flannel", "multus/c1", cbr, "incomplete"},
		{"no networks", "multus/c1", "[]", "no networks"},
		{"null in place of networks", "multus/c1", "null", "no networks"},
		{"null in place of a network", "multus/c1", "[null]", "network 1"},
		{"no network", "multus/c1", "[" + saved(cbr, "") + "," + saved(`{"name":"x"}`, "") + "]", "network 2"},
		{"not a container", "multus/.c1.swp", state, "invalid characters"},
		{"a torn entry of Multus", "multus/results/cbr-c1-eth0", `{"kind":`, "incomplete"},
		{"an entry of Multus of another container", "multus/results/cbr-c1-eth0", text("cniCacheV1", "c3", cbr, "null"), "the file name does not match"},
		{"a directory", "multus/dir/c1", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Write(tt.file, tt.text)
			w.Write("cni/results/cbr-z9-eth0", text("cniCacheV1", "z9", cbr, "null"))
			w.old(w.Write("multus/z8", state))
			var want []string
			if tt.want != "" {
				want = []string{"skipped: $DIR/" + tt.file + ": "}
			}
			var reasons []string
			good := 0
			for _, got := range w.take(w.node.Attachments()) {
				if strings.HasPrefix(got, "adopted multi/z") {
					good++
					continue
				}
				if !strings.Contains(got, tt.want) {
					t.Errorf("%q, want %q", got, tt.want)
				}
				reasons = append(reasons, got[:min(len(got), len("skipped: $DIR/"+tt.file+": "))])
			}
			nodetest.Equal(t, "reasons", reasons, want)
			if good != 2 {
				t.Errorf("%d others are taken over", good)
			}
			nodetest.Equal(t, "text", w.Read(tt.file), tt.text)
			for _, err := range w.node.Attachments() {
				if code := status.Code(err); err != nil && code != 5 && code != 6 && code != 7 {
					t.Errorf("code %d: %v", code, err)
				}
			}
		})
	}
}
