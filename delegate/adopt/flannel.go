package adopt

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
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

// A Flannel is what flannel's plugin has recorded: for each container a file with
// the configuration of the delegate, and nothing else.
type Flannel struct {
	// Root, when not empty, is the root directory in which all paths are
	// looked at: [lifecycle.Manager.Root].
	Root string

	// Dir is the plugin's dataDir.
	Dir string

	// Network is the name of flannel's network. What is recorded of another is
	// not there.
	Network string

	// Current, if it is not zero, is the delegate's configuration as it would
	// be now. It takes the place of one that a file has lost: flannel's plugin
	// does not wait for the disk.
	Current netconf.Network
}

// Attachment returns what is recorded of the container of at. All but the network
// is as at has it, and so as the runtime's call: the call's prevResult is
// at.Result. Without a file Attachment fails with [fs.ErrNotExist]. Where the
// file cannot be used the error is an [*Error].
func (f Flannel) Attachment(at delegate.Attached) (lifecycle.Adoption, error) {
	if err := utils.ValidateContainerID(at.ContainerID); err != nil {
		return lifecycle.Adoption{}, err
	}
	recorded, err := readFile(f.Root, filepath.Join(f.Dir, at.ContainerID))
	return f.attachment(recorded, err, at)
}

// attachment makes an adoption of a file that has been read, or has not because
// of err.
func (f Flannel) attachment(recorded file, err error, at delegate.Attached) (lifecycle.Adoption, error) {
	if err != nil && (!errors.Is(err, errEmpty) || f.Current.IsZero()) {
		return lifecycle.Adoption{}, err
	}
	conf, err := netconf.Parse(recorded.data)
	if errors.Is(err, netconf.ErrDecode) && !f.Current.IsZero() {
		conf, err = f.Current, nil
	}
	if err == nil && conf.Name() != f.Network {
		err = fmt.Errorf("of network %q: %w", conf.Name(), fs.ErrNotExist)
	}
	if bytes.Equal(at.Result, []byte("null")) {
		at.Result = nil
	}
	at.Network, at.Added = conf, at.Result != nil
	if err == nil {
		err = checkResult(at)
	}
	if err != nil {
		return lifecycle.Adoption{}, &Error{recorded.path, err}
	}
	k := scratch.Key{Network: f.Network, ContainerID: at.ContainerID, IfName: at.IfName}
	return Node{Root: f.Root}.adoption(k, []delegate.Attached{at}, recorded.path), nil
}

// Stale lists what is recorded of containers that are none of valid: they are
// gone. Their interface is eth0, for nothing says which. What has been recorded
// less than five minutes ago may be being attached, and is left out. An error is
// an [*Error] about one file or the directory and does not end the list.
func (f Flannel) Stale(valid []types.GCAttachment) iter.Seq2[lifecycle.Adoption, error] {
	return func(yield func(lifecycle.Adoption, error) bool) {
		stale := func(name string) bool {
			return utils.ValidateContainerID(name) == nil && !slices.ContainsFunc(valid, func(v types.GCAttachment) bool { return v.ContainerID == name })
		}
		for recorded, err := range files(f.Root, f.Dir, stale) {
			if !recorded.changed.IsZero() && time.Since(recorded.changed) < settling {
				continue
			}
			a, err := f.attachment(recorded, err, delegate.Attached{Attachment: delegate.Attachment{ContainerID: filepath.Base(recorded.path), IfName: "eth0"}})
			if errors.Is(err, fs.ErrNotExist) {
				continue // another network's
			}
			a.Gone = err == nil
			if !yield(a, err) {
				return
			}
		}
	}
}
