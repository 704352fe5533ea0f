// Libcni is a minimal meta-plugin, in the obvious way with the CNI library: pkg/skel and
// libcni. It keeps no records, but libcni a cache, without fsync.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

type config struct {
	types.NetConf
	Delegates []map[string]any `json:"delegates"`
	CacheDir  string           `json:"cacheDir"`
}

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del}, version.All, "libcni")
}

// plan returns the networks to run for args, and their runtime configurations.
func plan(args *skel.CmdArgs) (cni *libcni.CNIConfig, lists []*libcni.NetworkConfigList, rts []*libcni.RuntimeConf, err error) {
	var conf config
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return nil, nil, nil, err
	}
	for i, d := range conf.Delegates {
		name, ok := d["name"].(string)
		if !ok {
			name = conf.Name
		}
		list, err := json.Marshal(map[string]any{"cniVersion": conf.CNIVersion, "name": name, "plugins": []any{d}})
		if err != nil {
			return nil, nil, nil, err
		}
		l, err := libcni.ConfListFromBytes(list)
		if err != nil {
			return nil, nil, nil, err
		}
		ifname := args.IfName
		if i > 0 {
			ifname = fmt.Sprintf("net%d", i)
		}
		lists = append(lists, l)
		rts = append(rts, &libcni.RuntimeConf{ContainerID: args.ContainerID, NetNS: args.Netns, IfName: ifname})
	}
	return libcni.NewCNIConfigWithCacheDir(filepath.SplitList(args.Path), conf.CacheDir, nil), lists, rts, nil
}

func add(args *skel.CmdArgs) error {
	cni, lists, rts, err := plan(args)
	if err != nil {
		return err
	}
	var first types.Result
	for i, l := range lists {
		result, err := cni.AddNetworkList(context.Background(), l, rts[i])
		if err != nil {
			return err
		}
		if i == 0 {
			first = result
		}
	}
	return first.Print()
}

func del(args *skel.CmdArgs) error {
	cni, lists, rts, err := plan(args)
	if err != nil {
		return err
	}
	for i, l := range slices.Backward(lists) {
		if err := cni.DelNetworkList(context.Background(), l, rts[i]); err != nil {
			return err
		}
	}
	return nil
}
