package adopt

import (
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

// A Flannel reads what flannel's plugin has recorded: for each container a file
// with the delegate's configuration, and nothing else.
type Flannel struct {
	// Root, if not empty, is the root directory of the node as this process
	// sees it, as [lifecycle.Manager.Root]. All paths are paths of the node.
	Root string

	// Dir is the plugin's dataDir.
	Dir string

	// Network is the name of flannel's network. Files of another network are
	// ignored.
	Network string

	// Current, if it is not zero, is the delegate's configuration as an ADD
	// would make it now. It is used for a file that is empty or torn: earlier
	// versions of flannel's plugin did not wait for the disk.
	Current netconf.Network
}

// Attachment returns the attachment that is recorded for the container of at: at,
// which describes the runtime's call, with the recorded network. at.Result is the
// call's prevResult. One that cannot be decoded is left out, because DEL works without a
// result. Attachment fails with [fs.ErrNotExist] when there is no file,
// and with an error that begins with its path when the file cannot be used.
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
	at.Result = notNull(at.Result)
	if _, undecoded := at.ParsedResult(); undecoded != nil {
		at.Result = nil
	}
	at.Network, at.Added = conf, at.Result != nil
	if err != nil {
		return lifecycle.Adoption{}, failed(recorded.path, err)
	}
	k := scratch.Key{Network: f.Network, ContainerID: at.ContainerID, IfName: at.IfName}
	return adoption(f.Root, k, []delegate.Attached{at}, recorded.path), nil
}

// Stale lists the recorded attachments of containers that are not in valid. Their
// interface is taken to be eth0, because the record does not say. Files that are
// less than five minutes old are left out: their containers may just be attached.
// An error is about one file or the directory and does not end the list.
func (f Flannel) Stale(valid []types.GCAttachment) iter.Seq2[lifecycle.Adoption, error] {
	return func(yield func(lifecycle.Adoption, error) bool) {
		stale := func(name string) bool {
			return utils.ValidateContainerID(name) == nil && !slices.ContainsFunc(valid, func(v types.GCAttachment) bool { return v.ContainerID == name })
		}
		for recorded, err := range files(f.Root, f.Dir, stale) {
			if time.Since(recorded.changed) < settling {
				continue
			}
			a, err := f.attachment(recorded, err, delegate.Attached{Attachment: delegate.Attachment{ContainerID: filepath.Base(recorded.path), IfName: "eth0"}})
			if errors.Is(err, fs.ErrNotExist) {
				continue // another network's
			}
			if !yield(a, err) {
				return
			}
		}
	}
}
