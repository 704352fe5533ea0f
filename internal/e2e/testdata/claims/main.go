// Claims is an IPAM plugin with persistent addresses: a claim keeps its address until it is
// deleted, here never. A container without a claim keeps its address until DEL. All nodes share
// the directory of addresses.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Check: check, Del: del}, version.All, "")
}

type config struct {
	CNIVersion string
	Args       struct {
		CNI struct {
			Claim string `json:"ipam-claim-reference"`
		}
	}
	RuntimeConfig struct {
		Claim string `json:"ipam-claim-reference"`
	}
	IPAM struct{ Dir string }
}

// read returns the configuration, and who holds an address of it.
func read(a *skel.CmdArgs) (c config, holder string, err error) {
	err = json.Unmarshal(a.StdinData, &c)
	if err == nil && c.RuntimeConfig.Claim != "" && c.RuntimeConfig.Claim != c.Args.CNI.Claim {
		err = types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("claims %q and %q", c.Args.CNI.Claim, c.RuntimeConfig.Claim), "")
	}
	if c.Args.CNI.Claim != "" {
		return c, "claim " + c.Args.CNI.Claim, err
	}
	return c, "container " + a.ContainerID + " " + a.IfName, err
}

func (c config) file(i int) string { return filepath.Join(c.IPAM.Dir, fmt.Sprintf("10.99.0.%d", i)) }

// find returns the number of the holder's address, or 0.
func (c config) find(holder string) int {
	for i := 1; i < 254; i++ {
		if text, err := os.ReadFile(c.file(i)); err == nil && string(text) == holder {
			return i
		}
	}
	return 0
}

func add(a *skel.CmdArgs) error {
	c, holder, err := read(a)
	if err != nil {
		return err
	}
	have := c.find(holder)
	for i := 1; i < 254 && have == 0; i++ {
		f, err := os.OpenFile(c.file(i), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = f.WriteString(holder)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		have = i
	}
	if have == 0 {
		return errors.New("no address is left")
	}
	_, err = fmt.Printf(`{"cniVersion":%q,"ips":[{"version":"4","address":"10.99.0.%d/24","gateway":"10.99.0.254"}]}`, c.CNIVersion, have)
	return err
}

func check(a *skel.CmdArgs) error {
	c, holder, err := read(a)
	if err == nil && c.find(holder) == 0 {
		err = fmt.Errorf("%s has no address", holder)
	}
	return err
}

func del(a *skel.CmdArgs) error {
	c, holder, err := read(a)
	if i := c.find(holder); err == nil && i != 0 && c.Args.CNI.Claim == "" {
		err = os.Remove(c.file(i))
	}
	return err
}
