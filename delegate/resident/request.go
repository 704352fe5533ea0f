package resident

import (
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/netconf"
)

// A Request asks the host to attach one more network to a running container, or to
// detach it.
type Request struct {
	Detach      bool   `json:"detach,omitempty"`
	ContainerID string `json:"containerID"`

	// IfName names the interface. To attach, it may be empty: then the host
	// chooses a name.
	IfName string `json:"ifname,omitempty"`

	// Network, Args and CapabilityArgs are those of a [delegate.Attachment]. They
	// are ignored to detach.
	Network        netconf.Network            `json:"network,omitzero"`
	Args           string                     `json:"args,omitempty"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs,omitempty"`
}

// check refuses an invalid request.
func (r Request) check() error {
	invalid := func(format string, args ...any) error {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "invalid request: "+fmt.Sprintf(format, args...), "")
	}
	if err := utils.ValidateContainerID(r.ContainerID); err != nil {
		return invalid("%s: %.80q", err.Msg, r.ContainerID)
	}
	if r.IfName != "" || r.Detach {
		if err := utils.ValidateInterfaceName(r.IfName); err != nil {
			return invalid("%s: %.40q", err.Msg, r.IfName)
		}
	}
	if !r.Detach && r.Network.IsZero() {
		return types.NewError(types.ErrInvalidNetworkConfig, "invalid request: no network to attach", "")
	}
	return nil
}
