package device_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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
func attachment(declares, id string) delegate.Attachment {
	conf := `{"cniVersion":"1.0.0","name":"fast","type":"sriov"}`
	if declares != "" {
		conf = `{"cniVersion":"1.0.0","name":"fast","plugins":[{"type":"sriov"},{"type":"tuning","capabilities":{"` + declares + `":true}}]}`
	}
	a := delegate.Attachment{Network: nodetest.Parse(conf), ContainerID: "c1", IfName: "net1"}
	if id != "" {
		a.Origin = nad.Origin{Use: nad.UseSelected, Resource: vf, Device: id}.JSON()
		a.CapabilityArgs = netconf.Selection{DeviceID: id}.CapabilityArgs()
	}
	return a
}

// A node is a root directory, on which /var/run is a link as on most.
type node struct {
	*nodetest.Node
	device.Dir
}

// at is a file of the node as a path below its root.
func at(file string) string { return strings.Replace(file, "/var/run/", "run/", 1) }

func TestAnAttachmentHasAFileIfAPluginOrADeviceNeedsOne(t *testing.T) {
	t.Parallel()
	d := device.Dir{Owner: "multinet"}
	for _, tt := range []struct {
		declares, id string
		want         int
	}{{"", "", 0}, {"mac", "", 0}, {capability, "", 1}, {"", "0000:3b:02.1", 1}} {
		before := attachment(tt.declares, tt.id)
		had := len(before.CapabilityArgs)
		a := d.Assign(before)
		nodetest.Equal(t, "files", len(a.Files), tt.want)
		nodetest.Equal(t, "more arguments", len(a.CapabilityArgs)-had, tt.want)
		if len(before.CapabilityArgs) != had || before.Files != nil {
			t.Error("the argument was changed")
		}
		if tt.want > 0 {
			nodetest.Equal(t, "argument", string(a.CapabilityArgs[capability]), strconv.Quote(a.Files[0]))
			nodetest.Equal(t, "again", d.Assign(before).Files, a.Files)
		}
	}
}

func TestEveryAttachmentHasAFileOfItsOwn(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, owner := range []string{"a", "b"} {
		for _, network := range []string{"n", "n-c"} {
			for _, container := range []string{"c", "c-e", `c" "e`, "../../x"} {
				for _, ifname := range []string{"e", "c-e"} {
					a := attachment(capability, "")
					a.Network, a.ContainerID, a.IfName = nodetest.Parse(`{"cniVersion":"1.0.0","name":"`+network+`","plugins":[{"type":"x","capabilities":{"CNIDeviceInfoFile":true}}]}`), container, ifname
					file := device.Dir{Owner: owner}.Assign(a).Files[0]
					if seen[file] || filepath.Dir(file) != "/var/run/k8s.cni.cncf.io/devinfo/cni" {
						t.Errorf("the file of %s, %s, %s and %s is %s", owner, network, container, ifname, file)
					}
					seen[file] = true
				}
			}
		}
	}
}

func TestWhatTheDevicePluginHasWrittenIsCopiedForEveryoneToRead(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := n.Assign(attachment("", "id"))
	n.wantInfo(a, nil) // before Fill
	n.Write(ofDevice, pci)
	nodetest.OK(t, n.Fill(a))
	nodetest.Equal(t, "copied", n.Read(at(a.Files[0])), pci)
	n.wantInfo(a, pciInfo)
	// What an earlier attachment has left is not taken for that of this one.
	nodetest.OK(t, errors.Join(os.Remove(n.Node.Path(ofDevice)), n.Fill(a)))
	n.wantInfo(a, nil)
}

func TestAFileThatTheRuntimeHasGivenIsNotRead(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Write("etc/passwd", pci)
	a := attachment(capability, "id")
	a.CapabilityArgs[capability] = json.RawMessage(`"/etc/passwd"`)
	nodetest.Equal(t, "files of its own", n.Assign(a).Files, nil)
	n.wantInfo(a, nil)
}

// A device without a kernel driver makes no interface: its network is the one that is left over. A
// file that cannot be read hides no other.
func TestTheStatusHasWhatIsInTheFiles(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	of := func(ifname, text string) delegate.Attached {
		a := attachment("", "")
		if text != "" {
			a = attachment(capability, "")
		}
		a.IfName = ifname
		if a = n.Assign(a); text != "" {
			n.Write(at(a.Files[0]), text)
		}
		return delegate.Attached{Attachment: a}
	}
	eth0, net1, bad, net7 := of("eth0", ""), of("net1", pci), of("net2", "{"), of("net7", "")
	for name, tt := range map[string]struct {
		networks []string // interfaces
		attached []delegate.Attached
		at       int // of the information, -1 if there is none
		says     string
	}{
		"by the interface":         {[]string{"eth0", "net1", "net2"}, []delegate.Attached{eth0, net1, bad}, 1, "net2"},
		"without an interface":     {[]string{"eth0", "", ""}, []delegate.Attached{eth0, net7, net1}, 2, ""},
		"nobody knows which it is": {[]string{"eth0", "", ""}, []delegate.Attached{eth0, net1}, -1, ""},
	} {
		var got, want []status.Network
		for i, ifname := range tt.networks {
			got = append(got, status.Network{Interface: ifname})
			if want = append(want, got[i]); i == tt.at {
				want[i].DeviceInfo = pciInfo
			}
		}
		if err := device.Describe(n.Root, got, tt.attached...); tt.says != "" {
			nodetest.Says(t, err, tt.says)
		} else {
			nodetest.OK(t, err)
		}
		nodetest.Equal(t, name, got, want)
	}
}

func TestSweepRemovesOldFilesThatNoRecordHas(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	sweep := func(attached func() ([]delegate.Attachment, error), wantErr error, want ...string) {
		t.Helper()
		removed, err := n.Sweep(attached)
		nodetest.Is(t, err, wantErr)
		slices.Sort(removed)
		nodetest.Equal(t, "removed", removed, want)
	}
	sweep(nil, nil) // without a directory
	of := func(owner, container string) string {
		a := attachment(capability, "")
		a.ContainerID = container
		return device.Dir{Root: n.Root, Owner: owner}.Assign(a).Files[0]
	}
	used, lost, young, foreign := of(n.Owner, "used"), of(n.Owner, "lost"), of(n.Owner, "young"), of("another", "lost")
	temp := "/var/run/k8s.cni.cncf.io/devinfo/cni/.tmp-" + filepath.Base(lost)[:9] + "17"
	multus := "/var/run/k8s.cni.cncf.io/devinfo/cni/net-c1_net1"
	dir := strings.Replace(lost, ".json", "0.json", 1)
	n.Write(at(dir)+"/x", pci)
	for _, file := range []string{used, lost, young, foreign, temp, multus} {
		n.Write(at(file), pci)
	}
	for _, file := range []string{used, lost, foreign, temp, multus, dir} {
		old := time.Now().Add(-2 * time.Hour)
		nodetest.OK(t, os.Chtimes(n.Node.Path(at(file)), old, old))
	}
	none := errors.New("a record cannot be read")
	sweep(func() ([]delegate.Attachment, error) { return nil, none }, none)
	sweep(func() ([]delegate.Attachment, error) {
		// The directory had another name when the record was made.
		return []delegate.Attachment{{Files: []string{strings.Replace(used, "/var/run/", "/run/", 1)}}}, nil
	}, nil, temp, lost)
	for _, file := range []string{used, young, foreign, multus, dir} {
		_, err := os.Lstat(n.Node.Path(at(file)))
		nodetest.OK(t, err)
	}
	// Nothing that is left is both ours and old.
	nodetest.OK(t, os.Remove(n.Node.Path(at(used))))
	sweep(nil, nil)
}

// Runtimes run plugins with any umask.
func TestEveryoneCanReadTheFilesWhateverTheUmaskIs(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Write(ofDevice, pci)
	private := n.Node.Path("run/k8s.cni.cncf.io")
	nodetest.OK(t, errors.Join(os.Chmod(private, 0o711), os.Chmod(filepath.Join(private, "devinfo"), 0o755)))
	a := n.Assign(attachment(capability, "id"))
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			unix.Umask(0o077)
			err = n.Fill(a)
		}
		done <- err
	}()
	nodetest.OK(t, <-done)
	file := n.Node.Path(at(a.Files[0]))
	for path, want := range map[string]os.FileMode{file: 0o444, filepath.Dir(file): 0o755 | os.ModeDir, private: 0o711 | os.ModeDir} {
		info, err := os.Lstat(path)
		nodetest.OK(t, err)
		nodetest.Equal(t, path, info.Mode(), want)
	}
}

func TestFilesThatCannotBeUsedAreErrors(t *testing.T) {
	t.Parallel()
	writes := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
	}
	for name, spoil := range map[string]func(path string) error{
		"not JSON":     writes("{"),
		"another type": writes(`{"pci":[]}`),
		"large":        writes(strings.Repeat(" ", 65<<10)),
		"a directory":  func(path string) error { return os.Mkdir(path, 0o700) },
		"a FIFO":       func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a link":       func(path string) error { return os.Symlink("../../../../etc/passwd", path) },
	} {
		n := newNode(t)
		n.Write("etc/passwd", pci)
		// of an attachment
		a := n.Assign(attachment(capability, ""))
		nodetest.OK(t, errors.Join(n.Fill(a), spoil(n.Node.Path(at(a.Files[0])))))
		if got, err := load(n.Root, a); got != nil || err == nil || !strings.Contains(err.Error(), "device information of net1") {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		// of a device plugin
		b := n.Assign(attachment("", "id"))
		nodetest.OK(t, errors.Join(os.MkdirAll(filepath.Dir(n.Node.Path(ofDevice)), 0o755), spoil(n.Node.Path(ofDevice))))
		err := n.Fill(b)
		got, loadErr := load(n.Root, b)
		if got != nil || err == nil && loadErr == nil {
			t.Errorf("%s of a device plugin: %v, %v, %v", name, got, err, loadErr)
		}
	}
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := nodetest.New(t)
	nodetest.OK(t, errors.Join(os.Mkdir(n.Path("run"), 0o755), os.Mkdir(n.Path("var"), 0o755), os.Symlink("/run", n.Path("var", "run"))))
	return &node{n, device.Dir{Root: n.Dir, Owner: "/var/lib/cni/multinet"}}
}

// wantInfo wants the status of a to have this.
func (n *node) wantInfo(a delegate.Attachment, want *status.DeviceInfo) {
	n.Helper()
	got, err := load(n.Root, a)
	nodetest.OK(n, err)
	nodetest.Equal(n, "information", got, want)
}

const (
	pci      = `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:3b:02.1","new-key":1}}`
	ofDevice = "run/k8s.cni.cncf.io/devinfo/dp/vendor.example-vf-id-device.json" // of a device plugin
)

// pciInfo is what pci says.
var pciInfo = &status.DeviceInfo{Type: "pci", Version: "1.1.0", PCI: &status.PCIDevice{Address: "0000:3b:02.1"}}
