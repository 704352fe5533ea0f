package podresources_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/kube/podresources"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

const checkpoint = `{"Data":{"PodDeviceEntries":[
	{"PodUID":"u1","ContainerName":"second","ResourceName":"vendor.example/vf","DeviceIDs":{"1":["d"],"-1":["e"],"0":["c","b"]},"AllocResp":"CgA="},
	{"PodUID":"u2","ContainerName":"app","ResourceName":"vendor.example/vf","DeviceIDs":{"0":["x"]},"AllocResp":""},
	{"PodUID":"u1","ContainerName":"first","ResourceName":"vendor.example/vf","DeviceIDs":{"0":["a"]},"AllocResp":""},
	{"PodUID":"u1","ContainerName":"second","ResourceName":"vendor.example/nic","DeviceIDs":{"0":["n"]},"AllocResp":""}
],"RegisteredDevices":{"vendor.example/vf":["a","b"]}},"Checksum":2711024366}`

func TestWithoutASocketTheCheckpointIsRead(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	nodetest.OK(t, k.Stop())
	nodetest.OK(t, os.WriteFile(k.Checkpoint(), []byte(checkpoint), 0o600))
	want(t, c, web,
		on(0, "a"),
		append(append(append(on(-1, "e"), on(0, "c", "b")...), on(1, "d")...), device.Device{Resource: "vendor.example/nic", ID: "n"}),
	)
	want(t, c, nad.Pod{Namespace: "default", Name: "plain", UID: "u3"})
	if n := k.Connections(); n != 0 {
		t.Errorf("%d connections", n)
	}
}

func TestACheckpointThatCannotBeUsedIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"empty": "", "cut": checkpoint[:200], "another": `{"data":[]}`, "empty object": `{}`, "number": "7",
		"of a kubelet before 1.20, without NUMA nodes": `{"Data":{"PodDeviceEntries":[{"PodUID":"u1","DeviceIDs":["a"]}]}}`,
		"large": strings.Repeat(" ", maxSize) + checkpoint,
	} {
		file := filepath.Join(dir, name)
		nodetest.OK(t, os.WriteFile(file, []byte(text), 0o600))
		c := &podresources.Client{Socket: filepath.Join(dir, "none"), Checkpoint: file}
		got, err := c.Devices(t.Context(), web)
		if status.Code(err) != 11 || strings.Contains(err.Error(), "larger than 16 MiB") != (name == "large") {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
	c := &podresources.Client{Socket: filepath.Join(dir, "none"), Checkpoint: filepath.Join(dir, "none")}
	if _, err := c.Devices(t.Context(), web); !errors.Is(err, fs.ErrNotExist) || status.Code(err) != 11 {
		t.Errorf("neither socket nor checkpoint: %v", err)
	}
	c.Checkpoint = filepath.Join(dir, "empty object")
	if _, err := c.Devices(t.Context(), nad.Pod{Namespace: "default", Name: "web"}); err == nil || !strings.Contains(err.Error(), "K8S_POD_UID") {
		t.Errorf("without a UID: %v", err)
	}
}
