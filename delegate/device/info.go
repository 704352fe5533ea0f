package device

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// infoCapability is the capability of plugins that read and write device information files.
const infoCapability = "CNIDeviceInfoFile"

// defaultPath is what an empty [Dir.Path] means.
const defaultPath = "/var/run/k8s.cni.cncf.io/devinfo"

// maxSize is the size in bytes over which a file is refused.
const maxSize = 64 << 10

// A Dir is the directory of device information files. It has those of device plugins in dp,
// and those of attachments in cni. The zero Dir is that of this process's root directory.
// Goroutines and processes may share a Dir. It works on Linux.
type Dir struct {
	// Root is the directory at which this process sees the root directory of the
	// node. Empty means its own. No symbolic link leads out of it.
	Root string

	// Path is the directory as a path of the node. Empty means /var/run/k8s.cni.cncf.io/devinfo.
	Path string

	// Owner is part of the names of all files that Dir makes, and no other file is
	// removed: several programs use the same directory. The path of the directory in
	// which a program keeps its records is a good Owner.
	Owner string
}

// Assign returns a with a device information file: as the capability argument
// "CNIDeviceInfoFile", and as one of its Files. It does so if a plugin of the network declares the
// capability, or if a has a device: the capability argument "deviceID". Otherwise a does not
// change. It does not change either if the runtime has passed a file of its own.
//
// The name of the file is a hash of Owner, network, container and interface. It can be used
// in the file's directory only. The file does not exist yet, see [Dir.Fill].
func (d Dir) Assign(a delegate.Attachment) delegate.Attachment {
	_, given := a.CapabilityArgs[infoCapability]
	_, device := a.CapabilityArgs[capability]
	if given || !device && !slices.Contains(a.Network.Capabilities(), infoCapability) {
		return a
	}
	file := path.Join(d.cni(), d.prefix()+hash(a.Network.Name(), a.ContainerID, a.IfName)+suffix)
	a.Files = append(slices.Clip(a.Files), file)
	arg, _ := json.Marshal(file) // cannot fail: a string
	a.CapabilityArgs = with(a.CapabilityArgs, map[string]json.RawMessage{infoCapability: arg})
	return a
}

// suffix is the end of the name of each file.
const suffix = ".json"

// prefix is the beginning of the name of each file.
func (d Dir) prefix() string { return hash(d.Owner)[:8] + "-" }

// hash returns a hash of words. Other words have another hash, even if they are the same
// letters.
func hash(words ...string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", words))
	return fmt.Sprintf("%x", sum[:16])
}

func (d Dir) path() string { return cmp.Or(d.Path, defaultPath) }

// cni returns the directory of files of attachments.
func (d Dir) cni() string { return path.Join(d.path(), "cni") }

// owns reports whether Dir has made a file of that name, or write a temporary one.
func (d Dir) owns(name string) bool {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(name, durable.TempPrefix), d.prefix())
	return ok && strings.Trim(strings.TrimSuffix(rest, suffix), "0123456789abcdef") == ""
}

// assigned returns the file that Assign has given to a, or "".
func assigned(a delegate.Attachment) string {
	var file string
	_ = json.Unmarshal(a.CapabilityArgs[infoCapability], &file) // that of the runtime may be anything
	if slices.Contains(a.Files, file) {
		return file
	}
	return ""
}

// Fill makes the directory of the files that were assigned to as. If the Origin of an
// attachment is a [nad.Origin] with a device, Fill copies into its file what the device plugin
// has written about that device. The other files are for plugins to make. Fill removes what an
// earlier attachment has left.
//
// Everyone can read the directory and its files. A reader sees a whole file or none.
//
// Fill goes on past failures and joins the errors. That there is nothing to copy is none.
// The attachments can be made all the same: a caller may report the error and go on.
func (d Dir) Fill(as ...delegate.Attachment) error {
	var errs []error
	for _, a := range as {
		file := assigned(a)
		if file == "" {
			continue
		}
		var data []byte
		var err error
		if o := nad.ParseOrigin(a.Origin); o.Device != "" {
			data, err = d.read(path.Join(d.path(), "dp"), devicePluginFile(o.Resource, o.Device))
		}
		errs = append(errs, about(a, errors.Join(err, d.write(file, data))))
	}
	return errors.Join(errs...)
}

// about returns err as one about the file of a.
func about(a delegate.Attachment, err error) error {
	return fault.Of("device information of", a.IfName, err)
}

// devicePluginFile returns the name of the file that a device plugin writes about a device.
// It is always the name of one file: all "/" are replaced, and it ends with a word.
func devicePluginFile(resource, id string) string {
	return strings.ReplaceAll(resource, "/", "-") + "-" + strings.ReplaceAll(id, "/", "-") + "-device.json"
}

// Describe sets networks[i].DeviceInfo, by interface, to the content of the file that was
// assigned to the attachment, and leaves it alone if there is no file, or an empty one. Networks
// without an interface are those of the attachments whose interface no network has, in their order,
// if there are as many: a device that no kernel driver has makes no interface. root is the
// directory at which this process sees the root directory of the node; empty means its own.
//
// Describe goes on past failures and joins the errors: a file that cannot be read, has more
// than 64 KiB, or is not the JSON of a [status.DeviceInfo].
func Describe(root string, networks []status.Network, attached ...delegate.Attached) error {
	var errs []error
	at := make(map[string][]int) // networks by interface
	for i, n := range networks {
		at[n.Interface] = append(at[n.Interface], i)
	}
	var without []delegate.Attached
	for _, a := range attached {
		if len(at[a.IfName]) == 0 {
			without = append(without, a)
		}
	}
	if len(without) == len(at[""]) {
		for i, a := range without {
			at[a.IfName] = at[""][i : i+1]
		}
	}
	for _, a := range attached {
		info, err := load(root, a.Attachment)
		errs = append(errs, err)
		for _, i := range at[a.IfName] {
			if info != nil {
				networks[i].DeviceInfo = info
			}
		}
	}
	return errors.Join(errs...)
}

// load returns the content of the file that was assigned to a, or nil if there is none, or
// nothing in it. It fails if the file cannot be read, is too large, or is not the JSON of a
// [status.DeviceInfo].
func load(root string, a delegate.Attachment) (*status.DeviceInfo, error) {
	file := assigned(a)
	if file == "" {
		return nil, nil
	}
	data, err := Dir{Root: root}.read(path.Split(file))
	var info status.DeviceInfo
	if err == nil && len(bytes.TrimSpace(data)) > 0 {
		err = json.Unmarshal(data, &info)
	}
	if err != nil || info == (status.DeviceInfo{}) {
		return nil, about(a, err)
	}
	return &info, nil
}
