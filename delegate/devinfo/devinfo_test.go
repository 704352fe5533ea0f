package devinfo_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/devinfo"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

const vf = "vendor.example/vf"

// attachment is one of a network with a plugin that declares what is given, if anything.
func attachment(t *testing.T, capability, device string) delegate.Attachment {
	t.Helper()
	conf := `{"cniVersion":"1.0.0","name":"fast","type":"sriov"}`
	if capability != "" {
		conf = `{"cniVersion":"1.0.0","name":"fast","plugins":[{"type":"sriov"},{"type":"tuning","capabilities":{"` + capability + `":true}}]}`
	}
	n, err := netconf.Parse([]byte(conf))
	nodetest.OK(t, err)
	a := delegate.Attachment{Network: n, ContainerID: "c1", IfName: "net1"}
	if device != "" {
		a.Origin = nad.Origin{Use: nad.Selected, Resource: vf, Device: device}.JSON()
		a.CapabilityArgs = netconf.Selection{DeviceID: device}.CapabilityArgs()
	}
	return a
}

// node is the root directory of a node, on which /var/run is a link as on most.
func node(t *testing.T) (root string, d devinfo.Dir) {
	t.Helper()
	root = t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(root, "run"), 0o755), os.MkdirAll(filepath.Join(root, "var"), 0o755),
		os.Symlink("/run", filepath.Join(root, "var", "run")),
	} {
		nodetest.OK(t, err)
	}
	return root, devinfo.Dir{Root: root, Owner: "/var/lib/cni/multinet"}
}

// at returns the path of a file of the node.
func at(root, file string) string {
	return filepath.Join(root, strings.Replace(file, "/var/run/", "/run/", 1))
}

func write(t *testing.T, file, text string) {
	t.Helper()
	nodetest.OK(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)))
}

func TestAnAttachmentHasAFileIfAPluginOrADeviceNeedsOne(t *testing.T) {
	t.Parallel()
	d := devinfo.Dir{Owner: "multinet"}
	for _, tt := range []struct {
		capability, device string
		want               bool
	}{{"", "", false}, {"mac", "", false}, {devinfo.Capability, "", true}, {"", "0000:3b:02.1", true}} {
		before := attachment(t, tt.capability, tt.device)
		had := len(before.CapabilityArgs)
		a := d.Assign(before)
		if got := len(a.Files) == 1 && len(a.CapabilityArgs) == had+1; got != tt.want {
			t.Errorf("capability %q, device %q: files %q, arguments %s", tt.capability, tt.device, a.Files, a.CapabilityArgs)
		}
		if len(before.CapabilityArgs) != had || before.Files != nil {
			t.Error("the argument was changed")
		}
		if !tt.want {
			continue
		}
		var arg string
		if err := json.Unmarshal(a.CapabilityArgs[devinfo.Capability], &arg); err != nil || arg != a.Files[0] || filepath.Dir(arg) != "/var/run/k8s.cni.cncf.io/devinfo/cni" {
			t.Errorf("the argument is %s, the file %s", a.CapabilityArgs[devinfo.Capability], a.Files[0])
		}
		if again := d.Assign(before); again.Files[0] != a.Files[0] {
			t.Error("the name is another one each time")
		}
	}
}

func TestEveryAttachmentHasAFileOfItsOwn(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for _, owner := range []string{"a", "b"} {
		for _, network := range []string{"n", "n-c"} {
			for _, container := range []string{"c", "c-e", `c" "e`, "../../x"} {
				for _, ifname := range []string{"e", "c-e"} {
					n, err := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"` + network + `","plugins":[{"type":"x","capabilities":{"CNIDeviceInfoFile":true}}]}`))
					nodetest.OK(t, err)
					a := devinfo.Dir{Owner: owner}.Assign(delegate.Attachment{Network: n, ContainerID: container, IfName: ifname})
					name := filepath.Base(a.Files[0])
					which := strings.Join([]string{owner, network, container, ifname}, "|")
					if other, ok := seen[name]; ok {
						t.Errorf("%s and %s have one file", which, other)
					}
					seen[name] = which
					if filepath.Dir(a.Files[0]) != devinfo.DefaultPath+"/cni" {
						t.Errorf("%s: %s", which, a.Files[0])
					}
				}
			}
		}
	}
}

const pci = `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:3b:02.1","new-key":1}}`

func TestWhatTheDevicePluginHasWrittenIsCopiedForEveryoneToRead(t *testing.T) {
	t.Parallel()
	root, d := node(t)
	dp := filepath.Join(root, "run/k8s.cni.cncf.io/devinfo/dp/vendor.example-vf-0000:3b:02.1-device.json")
	a := d.Assign(attachment(t, "", "0000:3b:02.1"))
	none, err := devinfo.Load(root, a)
	if none != nil || err != nil {
		t.Errorf("before Fill: %v, %v", none, err)
	}
	write(t, dp, pci)
	nodetest.OK(t, d.Fill(a))
	for path, want := range map[string]os.FileMode{at(root, a.Files[0]): 0o444, filepath.Dir(at(root, a.Files[0])): 0o755 | os.ModeDir, filepath.Join(root, "run/k8s.cni.cncf.io"): 0o755 | os.ModeDir} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %v", path, info, err, want)
		}
	}
	if data, err := os.ReadFile(at(root, a.Files[0])); string(data) != pci {
		t.Errorf("copied %s, %v", data, err)
	}
	want := &status.DeviceInfo{Type: "pci", Version: "1.1.0", PCI: &status.PCIDevice{Address: "0000:3b:02.1"}}
	got, err := devinfo.Load(root, a)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	// What an earlier attachment has left is not taken for that of this one.
	nodetest.OK(t, errors.Join(os.Remove(dp), d.Fill(a)))
	if got, err := devinfo.Load(root, a); got != nil || err != nil {
		t.Errorf("after the device plugin's file has gone: %v, %v", got, err)
	}
}

func TestAPluginMayReplaceTheFile(t *testing.T) {
	t.Parallel()
	root, d := node(t)
	a := d.Assign(attachment(t, devinfo.Capability, ""))
	nodetest.OK(t, d.Fill(a, attachment(t, "", "")))
	write(t, at(root, a.Files[0]), `{"type":"vhost-user","vhost-user":{"mode":"client","path":"/x"}}`)
	want := &status.DeviceInfo{Type: "vhost-user", VhostUser: &status.VhostDevice{Mode: "client", Path: "/x"}}
	if got, err := devinfo.Load(root, a); err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("%v %v", got, err)
	}
}

func TestDeviceNamesDoNotLeadOutOfTheDirectory(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"../../../../etc/shadow", "/etc/shadow", "..", ".", "a/../b", "x\x00y", strings.Repeat("x", 300)} {
		root, d := node(t)
		write(t, filepath.Join(root, "etc/shadow"), pci)
		write(t, filepath.Join(root, "etc/shadow-device.json"), pci)
		write(t, filepath.Join(root, "run/k8s.cni.cncf.io/devinfo/dp/other"), pci)
		a := d.Assign(attachment(t, "", id))
		_ = d.Fill(a) // some of these cannot be a name, which is an error
		if got, err := devinfo.Load(root, a); got != nil || err != nil {
			t.Errorf("%q: read %v, %v", id, got, err)
		}
	}
}

func TestAFileThatTheRuntimeHasGivenIsNotRead(t *testing.T) {
	t.Parallel()
	root, d := node(t)
	write(t, filepath.Join(root, "etc/passwd"), pci)
	a := attachment(t, devinfo.Capability, "id")
	a.CapabilityArgs[devinfo.Capability] = json.RawMessage(`"/etc/passwd"`)
	if same := d.Assign(a); same.Files != nil {
		t.Errorf("what the runtime has given was taken for a file of its own: %q", same.Files)
	}
	if got, err := devinfo.Load(root, a); got != nil || err != nil {
		t.Errorf("%v %v", got, err)
	}
}

func TestTheStatusHasWhatIsInTheFiles(t *testing.T) {
	t.Parallel()
	root, d := node(t)
	a := d.Assign(attachment(t, devinfo.Capability, ""))
	bad := a
	bad.IfName, bad.Files, bad.CapabilityArgs = "net2", nil, nil
	bad = d.Assign(bad)
	write(t, at(root, a.Files[0]), pci)
	write(t, at(root, bad.Files[0]), "{")
	of := func(names ...string) (ns []status.Network) {
		for _, name := range names {
			ns = append(ns, status.Network{Interface: name})
		}
		return ns
	}
	got := of("eth0", "net1", "net2")
	err := devinfo.Describe(root, got, delegate.Attached{Attachment: attachment(t, "", "")}, delegate.Attached{Attachment: a}, delegate.Attached{Attachment: bad})
	if err == nil || !strings.Contains(err.Error(), "net2") {
		t.Errorf("got %v, want what is wrong with net2", err)
	}
	want := of("eth0", "net1", "net2")
	want[1].DeviceInfo = &status.DeviceInfo{Type: "pci", Version: "1.1.0", PCI: &status.PCIDevice{Address: "0000:3b:02.1"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestADirectoryThatCannotBeMadeIsAnError(t *testing.T) {
	t.Parallel()
	root, d := node(t)
	write(t, filepath.Join(root, "run/k8s.cni.cncf.io"), "a file")
	if err := d.Fill(d.Assign(attachment(t, devinfo.Capability, ""))); err == nil {
		t.Error("no error")
	}
}

func TestSweepRemovesOldFilesThatNoRecordHas(t *testing.T) {
	t.Parallel()
	root, d := node(t)
	if removed, err := d.Sweep(nil); removed != nil || err != nil {
		t.Errorf("without a directory: %q, %v", removed, err)
	}
	of := func(container string) delegate.Attachment {
		a := attachment(t, devinfo.Capability, "")
		a.ContainerID = container
		return a
	}
	used, lost, young := d.Assign(of("used")), d.Assign(of("lost")), d.Assign(of("young"))
	foreign := devinfo.Dir{Root: root, Owner: "another"}.Assign(of("lost"))
	temp := "/var/run/k8s.cni.cncf.io/devinfo/cni/.tmp-" + filepath.Base(lost.Files[0])[:9] + "17"
	multus := "/var/run/k8s.cni.cncf.io/devinfo/cni/net-c1_net1"
	dir := strings.Replace(lost.Files[0], ".json", "0.json", 1)
	all := []string{used.Files[0], lost.Files[0], young.Files[0], foreign.Files[0], temp, multus, dir}
	for _, file := range all {
		if file == dir {
			write(t, at(root, file)+"/x", pci)
		} else {
			write(t, at(root, file), pci)
		}
		if file != young.Files[0] {
			old := time.Now().Add(-2 * time.Hour)
			nodetest.OK(t, os.Chtimes(at(root, file), old, old))
		}
	}
	// The directory had another name when the record was made.
	used.Files[0] = strings.Replace(used.Files[0], "/var/run/", "/run/", 1)
	none := errors.New("a record cannot be read")
	if removed, err := d.Sweep(func() ([]delegate.Attachment, error) { return nil, none }); removed != nil || !errors.Is(err, none) {
		t.Errorf("without all records: %q, %v", removed, err)
	}
	removed, err := d.Sweep(func() ([]delegate.Attachment, error) { return []delegate.Attachment{used}, nil })
	used.Files[0] = all[0]
	slices.Sort(removed)
	if diff := cmp.Diff([]string{temp, lost.Files[0]}, removed); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for _, file := range all {
		_, err := os.Lstat(at(root, file))
		if gone := err != nil; gone != slices.Contains(removed, file) {
			t.Errorf("%s is gone: %v", file, gone)
		}
	}
	// Nothing that is left is both ours and old.
	nodetest.OK(t, os.Remove(at(root, used.Files[0])))
	if removed, err := d.Sweep(nil); removed != nil || err != nil {
		t.Errorf("with young files: %q, %v", removed, err)
	}
}
