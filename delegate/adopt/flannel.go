package adopt

import (
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// Flannel returns the attachment that flannel's plugin has recorded of a
// container in dir, its dataDir. The file holds the delegate's configuration
// and nothing else: at is the rest, as the runtime's call has it, with the
// call's prevResult as its Result. network is that of the key.
//
// Without such a file Flannel fails with [fs.ErrNotExist]. A file that cannot be
// read, or is not of network, is an [*Error]. Paths are looked at in root, if
// that is not empty.
func Flannel(root, dir, network string, at delegate.Attached) (lifecycle.Adoption, error) {
	if err := utils.ValidateContainerID(at.ContainerID); err != nil {
		return lifecycle.Adoption{}, err
	}
	f, err := readFile(root, filepath.Join(dir, at.ContainerID))
	if err != nil {
		return lifecycle.Adoption{}, err
	}
	return flannel(root, f, network, at)
}

func flannel(root string, f file, network string, at delegate.Attached) (lifecycle.Adoption, error) {
	conf, err := netconf.Parse(f.data)
	if err == nil && conf.Name() != network {
		err = fmt.Errorf("of network %q, not %q", conf.Name(), network)
	}
	at.Network, at.Added = conf, at.Result != nil
	if err == nil {
		err = checkResult(at)
	}
	if err != nil {
		return lifecycle.Adoption{}, &Error{f.path, err}
	}
	k := scratch.Key{Network: network, ContainerID: at.ContainerID, IfName: at.IfName}
	return Node{Root: root}.adoption(k, []delegate.Attached{at}, f.path), nil
}

// FlannelStale lists what flannel's plugin has recorded in dir of containers
// that are none of valid: with the interface eth0, for nothing says which. What
// is younger than five minutes may be being attached, and is left out. See
// [Flannel].
func FlannelStale(root, dir, network string, valid []types.GCAttachment) iter.Seq2[lifecycle.Adoption, error] {
	return func(yield func(lifecycle.Adoption, error) bool) {
		stale := func(name string) bool {
			return utils.ValidateContainerID(name) == nil && !slices.ContainsFunc(valid, func(v types.GCAttachment) bool { return v.ContainerID == name })
		}
		for f, err := range files(root, dir, stale) {
			if err == nil && time.Since(f.changed) < settling {
				continue
			}
			var a lifecycle.Adoption
			if err == nil {
				a, err = flannel(root, f, network, delegate.Attached{Attachment: delegate.Attachment{ContainerID: filepath.Base(f.path), IfName: "eth0"}})
				a.Gone = true
			}
			if err != nil {
				a = lifecycle.Adoption{}
			}
			if !yield(a, err) {
				return
			}
		}
	}
}
