package delegatetest

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// A skeleton is what package skel makes of a process, without one. A test
// compares the two.
type skeleton struct {
	call     Call
	versions version.PluginInfo
	stdout   io.Writer
	commands func() skel.CNIFuncs
}

// run fails with the [*types.Error] that skel would print.
func (s *skeleton) run() error {
	override := ""
	for _, kv := range s.call.Env {
		if v, ok := strings.CutPrefix(kv, "CNI_NETNS_OVERRIDE="); ok {
			override = v
		}
	}
	if err := s.checkVariables(); err != nil {
		return err
	}
	command := s.call.Command
	if command == "VERSION" {
		if err := s.versions.Encode(s.stdout); err != nil {
			return types.NewError(types.ErrIOFailure, err.Error(), "")
		}
		return nil
	}
	if err := checkName(s.call.Stdin); err != nil {
		return err
	}
	since, known := map[string]string{"ADD": "0", "DEL": "0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}[command]
	if !known {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND: "+command, "")
	}
	if err := s.checkVersion(since); err != nil {
		return err
	}
	funcs := s.commands()
	callback := map[string]func(*skel.CmdArgs) error{
		"ADD": funcs.Add, "DEL": funcs.Del, "CHECK": funcs.Check, "GC": funcs.GC, "STATUS": funcs.Status,
	}[command]
	if callback != nil {
		if err := callback(&skel.CmdArgs{
			ContainerID: s.call.ContainerID, Netns: s.call.NetNS, IfName: s.call.IfName, Args: s.call.Args,
			Path: s.call.Path, NetnsOverride: override, StdinData: slices.Clone(s.call.Stdin),
		}); err != nil {
			return err
		}
	}
	if since != "0" || override == "1" || strings.EqualFold(override, "true") {
		return nil
	}
	own, err := ns.CheckNetNS(s.call.NetNS)
	if err != nil {
		return err
	}
	if own {
		return types.NewError(types.ErrInvalidNetNS, "plugin's netns and netns from CNI_NETNS should not be the same", "")
	}
	return nil
}

// checkVariables requires the variables of the command, and validates those.
func (s *skeleton) checkVariables() error {
	c := s.call
	container := c.Command == "ADD" || c.Command == "CHECK" || c.Command == "DEL"
	var missing []string
	for _, v := range []struct {
		name, value string
		required    bool
		validate    func(string) *types.Error
	}{
		{"CNI_COMMAND", c.Command, true, nil},
		{"CNI_CONTAINERID", c.ContainerID, container, utils.ValidateContainerID},
		{"CNI_NETNS", c.NetNS, container && c.Command != "DEL", nil},
		{"CNI_IFNAME", c.IfName, container, utils.ValidateInterfaceName},
		{"CNI_PATH", c.Path, container || c.Command == "GC" || c.Command == "STATUS", nil},
	} {
		switch {
		case !v.required:
		case v.value == "":
			missing = append(missing, v.name)
		case v.validate != nil:
			if err := v.validate(v.value); err != nil {
				return err
			}
		}
	}
	if len(missing) > 0 {
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("required env variables [%s] missing", strings.Join(missing, ",")), "")
	}
	return nil
}

// checkName requires a network's name.
func checkName(stdin []byte) error {
	var conf struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("error unmarshall network config: %v", err), "")
	}
	if conf.Name == "" {
		return types.NewError(types.ErrInvalidNetworkConfig, "missing network name", "")
	}
	if err := utils.ValidateNetworkName(conf.Name); err != nil {
		return err
	}
	return nil
}

// checkVersion requires a configuration of a version that the plugin supports
// and that has the command, which is there since a version.
func (s *skeleton) checkVersion(since string) error {
	conf, err := new(version.ConfigDecoder).Decode(s.call.Stdin)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	if since != "0" {
		if ok, err := version.GreaterThanOrEqualTo(conf, since); err != nil {
			return types.NewError(types.ErrDecodingFailure, err.Error(), "")
		} else if !ok {
			return types.NewError(types.ErrIncompatibleCNIVersion, "config version does not allow "+s.call.Command, "")
		}
		allows := func(supported string) bool {
			ok, err := version.GreaterThanOrEqualTo(supported, conf)
			return ok && err == nil
		}
		if !slices.ContainsFunc(s.versions.SupportedVersions(), allows) {
			return types.NewError(types.ErrIncompatibleCNIVersion, "plugin version does not allow "+s.call.Command, "")
		}
	}
	if err := new(version.Reconciler).Check(conf, s.versions); err != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions", err.Details())
	}
	return nil
}
