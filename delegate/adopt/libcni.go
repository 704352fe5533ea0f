package adopt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// kind is what libcni says of an entry of its cache.
const kind = "cniCacheV1"

// An entry is a file in the cache of libcni.
type entry struct {
	Kind           string                     `json:"kind"`
	ContainerID    string                     `json:"containerId"`
	Config         []byte                     `json:"config"`
	IfName         string                     `json:"ifName"`
	NetworkName    string                     `json:"networkName"`
	NetNS          string                     `json:"netns,omitempty"`
	Args           [][2]string                `json:"cniArgs,omitempty"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
	Result         json.RawMessage            `json:"result,omitempty"`

	path string
}

// file is the name of the file of e. A dash may be part of a name or separate two,
// so that the names in the file count.
func (e *entry) file() string {
	return e.NetworkName + "-" + e.ContainerID + "-" + e.IfName
}

// cache is the directory of the entries of a cache directory.
func cache(dir string) string { return filepath.Join(dir, "results") }

// libcni lists the attachments to the networks Primary in libcni's cache.
func (n Node) libcni() iter.Seq2[lifecycle.Adoption, error] {
	return func(yield func(lifecycle.Adoption, error) bool) {
		if n.CacheDir == "" {
			return
		}
		mayBe := func(file string) bool {
			return slices.ContainsFunc(n.Primary, func(name string) bool { return strings.HasPrefix(file, name+"-") })
		}
		for e, err := range n.entries(cache(n.CacheDir), mayBe) {
			var a lifecycle.Adoption
			if err == nil {
				a, err = n.primary(e)
			}
			if errors.Is(err, errNotPrimary) {
				continue
			}
			if !yield(a, err) {
				return
			}
		}
	}
}

// Attachment returns what [Node.Attachments] has of one interface of a container in
// libcni's cache. It looks at one file for each network of Primary, and fails with
// [fs.ErrNotExist] if none is that of the attachment.
func (n Node) Attachment(containerID, ifName string) (lifecycle.Adoption, error) {
	for _, network := range n.Primary {
		name := (&entry{NetworkName: network, ContainerID: containerID, IfName: ifName}).file()
		path := filepath.Join(cache(n.CacheDir), name)
		if n.CacheDir == "" || filepath.Base(path) != name {
			continue
		}
		f, err := readFile(n.Root, path)
		var e *entry
		if err == nil {
			e, err = readEntry(f)
		}
		var a lifecycle.Adoption
		if err == nil {
			a, err = n.primary(e)
		}
		if err == nil && (a.Key.ContainerID != containerID || a.Key.IfName != ifName) {
			err = errNotPrimary // a dash is at another place
		}
		if !errors.Is(err, errNotPrimary) && !errors.Is(err, fs.ErrNotExist) {
			return a, err
		}
	}
	return lifecycle.Adoption{}, failed(cache(n.CacheDir), fs.ErrNotExist)
}

var errNotPrimary = errors.New("an attachment to another network")

// primary returns the adoption of e. It fails with errNotPrimary if e is not of a
// network that ours has replaced.
func (n Node) primary(e *entry) (lifecycle.Adoption, error) {
	if !slices.Contains(n.Primary, e.NetworkName) {
		return lifecycle.Adoption{}, errNotPrimary
	}
	attached, err := e.attached()
	switch {
	case err != nil:
		return lifecycle.Adoption{}, err
	case n.own(attached.Network):
		return lifecycle.Adoption{}, errNotPrimary
	}
	return adoption(n.Root, scratch.Key{Network: n.Network, ContainerID: e.ContainerID, IfName: e.IfName}, []delegate.Attached{attached}, e.path), nil
}

// entries lists the entries in dir, those of files whose name is wanted.
func (n Node) entries(dir string, wanted func(file string) bool) iter.Seq2[*entry, error] {
	return func(yield func(*entry, error) bool) {
		for f, err := range files(n.Root, dir, wanted) {
			var e *entry
			if err == nil {
				e, err = readEntry(f)
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// readEntry reads the entry f, without its configuration.
func readEntry(f file) (*entry, error) {
	e := &entry{path: f.path}
	if err := json.Unmarshal(f.data, e); err != nil {
		return nil, failed(f.path, fmt.Errorf("incomplete, or not an entry of libcni's cache: %w", err))
	}
	switch {
	case e.Kind != kind:
		return nil, failed(f.path, fmt.Errorf("of kind %q, want %q", e.Kind, kind))
	case e.file() != filepath.Base(f.path):
		return nil, failed(f.path, errors.New("the file name does not match the network, container and interface in it"))
	}
	if err := utils.ValidateContainerID(e.ContainerID); err != nil {
		return nil, failed(f.path, err)
	}
	if err := utils.ValidateInterfaceName(e.IfName); err != nil {
		return nil, failed(f.path, err)
	}
	if bytes.Equal(e.Result, []byte("null")) {
		e.Result = nil
	}
	return e, nil
}

// attached is the attachment that e is of.
func (e *entry) attached() (delegate.Attached, error) {
	network, err := netconf.Parse(e.Config)
	if err == nil && network.Name() != e.NetworkName {
		err = fmt.Errorf("the configuration is of network %q", network.Name())
	}
	if err != nil {
		return delegate.Attached{}, failed(e.path, err)
	}
	args := make([]string, len(e.Args))
	for i, arg := range e.Args {
		args[i] = arg[0] + "=" + arg[1]
	}
	a := delegate.Attached{
		Attachment: delegate.Attachment{
			Network: network, ContainerID: e.ContainerID, NetNS: e.NetNS, IfName: e.IfName,
			Args: strings.Join(args, ";"), CapabilityArgs: e.CapabilityArgs,
		},
		Result: e.Result, Added: e.Result != nil,
	}
	if err := checkResult(a); err != nil {
		return delegate.Attached{}, failed(e.path, err)
	}
	if a.NetNS == "" { // libcni 1.1 and before did not write it down
		a.NetNS = sandbox(a)
	}
	return a, nil
}

func checkResult(a delegate.Attached) error {
	if a.Result == nil {
		return nil
	}
	_, err := a.Decode()
	var e *delegate.Error
	if errors.As(err, &e) {
		return e.Err // it was no ADD that failed
	}
	return err
}

// own reports whether network has a meta-plugin with records of its own.
func (n Node) own(network netconf.Network) bool {
	return slices.ContainsFunc(network.Plugins(), func(p netconf.Plugin) bool { return slices.Contains(n.Own, p.Type()) })
}
