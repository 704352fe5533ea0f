package device_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/device"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

const (
	vf         = "vendor.example/vf"
	capability = "CNIDeviceInfoFile"
)

// load returns what the status says of the device of a.
func load(root string, a delegate.Attachment) (*status.DeviceInfo, error) {
	networks := []status.Network{{Interface: a.IfName}}
	err := device.Describe(root, networks, delegate.Attached{Attachment: a})
	return networks[0].DeviceInfo, err
}

// attachment is one of a network with a plugin that declares what is given, if anything.
func attachment(t *testing.T, declares, id string) delegate.Attachment {
	t.Helper()
	conf := `{"cniVersion":"1.0.0","name":"fast","type":"sriov"}`
	if declares != "" {
		conf = `{"cniVersion":"1.0.0","name":"fast","plugins":[{"type":"sriov"},{"type":"tuning","capabilities":{"` + declares + `":true}}]}`
	}
	a := delegate.Attachment{Network: nodetest.Parse(conf), ContainerID: "c1", IfName: "net1"}
	if id != "" {
		a.Origin = nad.Origin{Use: nad.Selected, Resource: vf, Device: id}.JSON()
		a.CapabilityArgs = netconf.Selection{DeviceID: id}.CapabilityArgs()
	}
	return a
}

// node is the root directory of a node, on which /var/run is a link as on most.
func node(t *testing.T) (root string, d device.Dir) {
	t.Helper()
	root = t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(root, "run"), 0o755), os.MkdirAll(filepath.Join(root, "var"), 0o755),
		os.Symlink("/run", filepath.Join(root, "var", "run")),
	} {
		nodetest.OK(t, err)
	}
	return root, device.Dir{Root: root, Owner: "/var/lib/cni/multinet"}
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
	d := device.Dir{Owner: "multinet"}
	for _, tt := range []struct {
		declares, id string
		want         bool
	}{{"", "", false}, {"mac", "", false}, {capability, "", true}, {"", "0000:3b:02.1", true}} {
		before := attachment(t, tt.declares, tt.id)
		had := len(before.CapabilityArgs)
		a := d.Assign(before)
		if got := len(a.Files) == 1 && len(a.CapabilityArgs) == had+1; got != tt.want {
			t.Errorf("capability %q, device %q: files %q, arguments %s", tt.declares, tt.id, a.Files, a.CapabilityArgs)
		}
		if len(before.CapabilityArgs) != had || before.Files != nil {
			t.Error("the argument was changed")
		}
		if !tt.want {
			continue
		}
		var arg string
		if err := json.Unmarshal(a.CapabilityArgs[capability], &arg); err != nil || arg != a.Files[0] || filepath.Dir(arg) != "/var/run/k8s.cni.cncf.io/devinfo/cni" {
			t.Errorf("the argument is %s, the file %s", a.CapabilityArgs[capability], a.Files[0])
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
					n := nodetest.Parse(`{"cniVersion":"1.0.0","name":"` + network + `","plugins":[{"type":"x","capabilities":{"CNIDeviceInfoFile":true}}]}`)
					a := device.Dir{Owner: owner}.Assign(delegate.Attachment{Network: n, ContainerID: container, IfName: ifname})
					name := filepath.Base(a.Files[0])
					which := strings.Join([]string{owner, network, container, ifname}, "|")
					if other, ok := seen[name]; ok {
						t.Errorf("%s and %s have one file", which, other)
					}
					seen[name] = which
					if filepath.Dir(a.Files[0]) != "/var/run/k8s.cni.cncf.io/devinfo"+"/cni" {
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
	none, err := load(root, a)
	if none != nil || err != nil {
		t.Errorf("before Fill: %v, %v", none, err)
	}
	write(t, dp, pci)
	nodetest.OK(t, d.Fill(a))
	if data, err := os.ReadFile(at(root, a.Files[0])); string(data) != pci {
		t.Errorf("copied %s, %v", data, err)
	}
	got, err := load(root, a)
	nodetest.OK(t, err)
	nodetest.Equal(t, "information", got, &status.DeviceInfo{Type: "pci", Version: "1.1.0", PCI: &status.PCIDevice{Address: "0000:3b:02.1"}})
	// What an earlier attachment has left is not taken for that of this one.
	nodetest.OK(t, errors.Join(os.Remove(dp), d.Fill(a)))
	if got, err := load(root, a); got != nil || err != nil {
		t.Errorf("after the device plugin's file has gone: %v, %v", got, err)
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
		if got, err := load(root, a); got != nil || err != nil {
			t.Errorf("%q: read %v, %v", id, got, err)
		}
	}
}

func TestAFileThatTheRuntimeHasGivenIsNotRead(t *testing.T) {
	t.Parallel()
	root, d := node(t)
	write(t, filepath.Join(root, "etc/passwd"), pci)
	a := attachment(t, capability, "id")
	a.CapabilityArgs[capability] = json.RawMessage(`"/etc/passwd"`)
	if same := d.Assign(a); same.Files != nil {
		t.Errorf("what the runtime has given was taken for a file of its own: %q", same.Files)
	}
	if got, err := load(root, a); got != nil || err != nil {
		t.Errorf("%v %v", got, err)
	}
}

func TestTheStatusHasWhatIsInTheFiles(t *testing.T) {
	t.Parallel()
	root, d := node(t)
	a := d.Assign(attachment(t, capability, ""))
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
	err := device.Describe(root, got, delegate.Attached{Attachment: attachment(t, "", "")}, delegate.Attached{Attachment: a}, delegate.Attached{Attachment: bad})
	if err == nil || !strings.Contains(err.Error(), "net2") {
		t.Errorf("got %v, want what is wrong with net2", err)
	}
	want := of("eth0", "net1", "net2")
	want[1].DeviceInfo = &status.DeviceInfo{Type: "pci", Version: "1.1.0", PCI: &status.PCIDevice{Address: "0000:3b:02.1"}}
	nodetest.Equal(t, "status", got, want)
}

// A device without a kernel driver makes no interface.
func TestNetworksWithoutAnInterfaceAreDescribed(t *testing.T) {
	t.Parallel()
	root, d := node(t)
	a := d.Assign(attachment(t, capability, ""))
	write(t, at(root, a.Files[0]), pci)
	eth0, b := delegate.Attached{Attachment: attachment(t, "", "")}, delegate.Attached{Attachment: attachment(t, "", "")}
	eth0.IfName, b.IfName = "eth0", "net7"
	networks := []status.Network{{Interface: "eth0"}, {Name: "without"}, {Name: "another"}}
	nodetest.OK(t, device.Describe(root, networks, eth0, b, delegate.Attached{Attachment: a}))
	if networks[0].DeviceInfo != nil || networks[1].DeviceInfo != nil || networks[2].DeviceInfo == nil {
		t.Errorf("status %+v", networks)
	}
	networks[2].DeviceInfo = nil
	nodetest.OK(t, device.Describe(root, networks, eth0, delegate.Attached{Attachment: a})) // nobody knows which it is
	if networks[1].DeviceInfo != nil || networks[2].DeviceInfo != nil {
		t.Errorf("status %+v", networks)
	}
}

func TestSweepRemovesOldFilesThatNoRecordHas(t *testing.T) {
	t.Parallel()
	root, d := node(t)
	if removed, err := d.Sweep(nil); removed != nil || err != nil {
		t.Errorf("without a directory: %q, %v", removed, err)
	}
	of := func(container string) delegate.Attachment {
		a := attachment(t, capability, "")
		a.ContainerID = container
		return a
	}
	used, lost, young := d.Assign(of("used")), d.Assign(of("lost")), d.Assign(of("young"))
	foreign := device.Dir{Root: root, Owner: "another"}.Assign(of("lost"))
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

// Runtimes run plugins with any umask.
func TestEveryoneCanReadTheFilesWhateverTheUmaskIs(t *testing.T) {
	t.Parallel()
	root, d := node(t)
	write(t, filepath.Join(root, "run/k8s.cni.cncf.io/devinfo/dp/vendor.example-vf-id-device.json"), pci)
	private := filepath.Join(root, "run/k8s.cni.cncf.io")
	nodetest.OK(t, os.Chmod(private, 0o711))
	a := d.Assign(attachment(t, capability, "id"))
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			unix.Umask(0o077)
			err = d.Fill(a)
		}
		done <- err
	}()
	nodetest.OK(t, <-done)
	file := at(root, a.Files[0])
	for path, want := range map[string]os.FileMode{file: 0o444, filepath.Dir(file): 0o755 | os.ModeDir, private: 0o711 | os.ModeDir} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %v", path, info, err, want)
		}
	}
}

func TestFilesThatCannotBeUsedAreErrors(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(path string) error{
		"not JSON":     func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"another type": func(path string) error { return os.WriteFile(path, []byte(`{"pci":[]}`), 0o600) },
		"large":        func(path string) error { return os.WriteFile(path, []byte(strings.Repeat(" ", 65<<10)), 0o600) },
		"a directory":  func(path string) error { return os.Mkdir(path, 0o700) },
		"a FIFO":       func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a link":       func(path string) error { return os.Symlink("../../../../etc/passwd", path) },
	} {
		root, d := node(t)
		write(t, filepath.Join(root, "etc/passwd"), pci)
		// of an attachment
		a := d.Assign(attachment(t, capability, ""))
		nodetest.OK(t, errors.Join(d.Fill(a), make(at(root, a.Files[0]))))
		if got, err := load(root, a); got != nil || err == nil || !strings.Contains(err.Error(), "device information of net1") {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		// of a device plugin
		b := d.Assign(attachment(t, "", "id"))
		dp := filepath.Join(root, "run/k8s.cni.cncf.io/devinfo/dp/vendor.example-vf-id-device.json")
		nodetest.OK(t, errors.Join(os.MkdirAll(filepath.Dir(dp), 0o755), make(dp)))
		err := d.Fill(b)
		got, loadErr := load(root, b)
		if got != nil || err == nil && loadErr == nil {
			t.Errorf("%s of a device plugin: %v, %v, %v", name, got, err, loadErr)
		}
	}
}
