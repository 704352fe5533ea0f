package delegatetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A pool is a small IPAM plugin, with flaws if a test asks for them. It keeps the addresses of
// each container in a file.
type pool struct {
	flaws  []string
	stdout io.Writer
	args   *skel.CmdArgs
	conf   struct {
		CNIVersion string
		IPAM       struct {
			Dir     string
			Size    int
			Address string
		}
		Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
}

func poolStdin(dir string) string {
	return fmt.Sprintf(`{"type":"bridge","ipam":{"type":"pool","dir":%q,"size":5}}`, dir)
}

// poolLock is for all pools: their commands take no time.
var poolLock sync.Mutex

func newPool(flaws ...string) callbacks {
	return func(_ context.Context, _ invoke.Exec, _ []string, stdout io.Writer) skel.CNIFuncs {
		command := func(do func(*pool) error) func(*skel.CmdArgs) error {
			return func(args *skel.CmdArgs) error {
				p := &pool{flaws: flaws, stdout: stdout, args: args}
				if err := json.Unmarshal(args.StdinData, &p.conf); err != nil {
					return types.NewError(types.ErrDecodingFailure, err.Error(), "")
				}
				poolLock.Lock()
				defer poolLock.Unlock()
				return do(p)
			}
		}
		return skel.CNIFuncs{Add: command((*pool).add), Check: command((*pool).check), Del: command((*pool).del), GC: command((*pool).gc), Status: command((*pool).status)}
	}
}

func (p *pool) has(flaw string) bool { return slices.Contains(p.flaws, flaw) }

func (p *pool) file(containerID, ifname string) string {
	if p.has("takes # for a comment") {
		ifname, _, _ = strings.Cut(ifname, "#")
	}
	return filepath.Join(p.conf.IPAM.Dir, containerID+"@"+ifname)
}

// taken returns the files, and the addresses in them.
func (p *pool) taken() (files, all []string) {
	files, _ = filepath.Glob(p.file("*", "*"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		all = append(all, string(text))
	}
	return files, all
}

// free returns an address, or nothing.
func (p *pool) free() string {
	_, taken := p.taken()
	for i := range p.conf.IPAM.Size {
		ip := fmt.Sprintf("192.0.2.%d/24", i+1)
		if !slices.Contains(taken, ip) || p.has("gives one address") {
			return ip
		}
	}
	return ""
}

func (p *pool) add() error {
	ip := p.conf.IPAM.Address
	if ip == "" {
		ip = p.free()
	}
	switch {
	case ip == "" && p.has("gives nothing"):
		_, err := fmt.Fprintf(p.stdout, `{"cniVersion":%q}`, p.conf.CNIVersion)
		return err
	case ip == "":
		return errors.New("no address is left")
	}
	if err := os.WriteFile(p.file(p.args.ContainerID, p.args.IfName), []byte(ip), 0o600); err != nil {
		return err
	}
	more := ""
	switch {
	case p.has("prints interfaces"):
		more = `,"interfaces":[{"name":"eth0"}]`
	case p.has("prints no address"):
		_, err := fmt.Fprintf(p.stdout, `{"cniVersion":%q}`, p.conf.CNIVersion)
		return err
	}
	if key, _, ok := strings.Cut(p.conf.CNIVersion, ".2"); ok && key == "0" || p.conf.CNIVersion == "0.1.0" {
		_, err := fmt.Fprintf(p.stdout, `{"cniVersion":%q,"ip4":{"ip":%q}}`, p.conf.CNIVersion, ip)
		return err
	}
	version := ""
	if strings.HasPrefix(p.conf.CNIVersion, "0.") {
		version = `"version":"4",`
	}
	_, err := fmt.Fprintf(p.stdout, `{"cniVersion":%q,"ips":[{%s"address":%q}]%s}`, p.conf.CNIVersion, version, ip, more)
	return err
}

func (p *pool) del() error {
	files, _ := p.taken()
	switch {
	case p.has("releases nothing"), p.has("needs CNI_NETNS") && p.args.Netns == "":
		return nil
	case p.has("releases all"):
		for _, file := range files {
			if err := os.Remove(file); err != nil {
				return err
			}
		}
		return nil
	case p.has("releases the first") && len(files) > 0:
		return os.Remove(files[0])
	}
	err := os.Remove(p.file(p.args.ContainerID, p.args.IfName))
	if errors.Is(err, fs.ErrNotExist) && !p.has("deletes once") {
		return nil
	}
	return err
}

func (p *pool) check() error {
	if p.has("fails CHECK") {
		return errors.New("not well")
	}
	if p.has("checks nothing") || p.conf.IPAM.Address != "" {
		return nil
	}
	_, err := os.Stat(p.file(p.args.ContainerID, p.args.IfName))
	return err
}

func (p *pool) gc() error {
	if p.has("collects nothing") {
		return nil
	}
	files, _ := p.taken()
	for _, file := range files {
		id, ifname, _ := strings.Cut(filepath.Base(file), "@")
		if !slices.Contains(p.conf.Valid, types.GCAttachment{ContainerID: id, IfName: ifname}) || p.has("collects everything") {
			if err := os.Remove(file); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pool) status() error {
	if p.free() == "" && !p.has("is always ready") {
		return types.NewError(50, "no address is left", "")
	}
	return nil
}

// An IPAM plugin is found out in its configuration, and each of its flaws fails one check.
func TestEachFlawOfAnIPAMPluginFailsItsCheckAndNoOther(t *testing.T) {
	t.Parallel()
	for flaw, fails := range map[string]string{
		"":                    "",
		"prints interfaces":   "ipam-result",
		"prints no address":   "ipam-result",
		"gives one address":   "ipam-unique",
		"releases nothing":    "ipam-release",
		"releases all":        "ipam-release",
		"releases the first":  "ipam-release",
		"needs CNI_NETNS":     "ipam-release",
		"gives nothing":       "ipam-release",
		"fails CHECK":         "check-fresh",
		"deletes once":        "del-again",
		"checks nothing":      "check-gone",
		"collects nothing":    "ipam-gc",
		"collects everything": "ipam-gc",
		"is always ready":     "ipam-full",

		"takes # for a comment": "names",
	} {
		t.Run(flaw, func(t *testing.T) {
			t.Parallel()
			check(t, newPool(flaw).program(), delegatetest.Config{Stdin: poolStdin, Kind: "ipam"}, strings.Fields(fails)...)
		})
	}
}

// A right IPAM plugin passes however few addresses it has.
func TestIPAMPluginMayHaveFewAddresses(t *testing.T) {
	t.Parallel()
	for size, notRun := range map[int][]string{
		1: {"ipam-unique", "ipam-gc", "concurrent"},
		3: {"concurrent"},
		9: nil,
		// A check takes 64 of them.
		100: {"ipam-release", "ipam-gc", "ipam-full"},
	} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			t.Parallel()
			r := check(t, newPool().program(), delegatetest.Config{Kind: "ipam", Stdin: func(dir string) string {
				return strings.Replace(poolStdin(dir), `"size":5`, fmt.Sprintf(`"size":%d`, size), 1)
			}})
			nodetest.Equal(t, "not made", *r.unmade, slices.Concat([]string{"del-gone"}, notRun), cmpopts.SortSlices(strings.Compare))
		})
	}
}

// The suite knows an IPAM plugin by the name of the executable in the configuration of the
// plugin that runs it, or by its result.
func TestKindIsFoundOut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		plugin delegatetest.Target
		conf   delegatetest.Config
		want   string
	}{
		{"told", newMeta().program(), delegatetest.Config{Stdin: metaStdin, Delegates: []string{"one", "two"}, Kind: "main"}, "main"},
		{"delegates", newMeta().program(), metaConfig, "meta"},
		{"one delegate, for the address", newMeta().program(), delegatetest.Config{Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"m","dir":%q,"ipam":{"type":"addr"},"delegates":[{"type":"addr"}]}`, dir)
		}, Delegates: []string{"addr"}}, "main"},
		{"its type is that of ipam", newPool().program(), delegatetest.Config{Stdin: func(dir string) string {
			return strings.Replace(poolStdin(dir), "bridge", "pool", 1)
		}}, "ipam"},
		{"addresses without an interface", newPool().program(), delegatetest.Config{Stdin: func(dir string) string {
			return strings.Replace(poolStdin(dir), `"type":"pool"`, `"type":"other"`, 1)
		}}, "ipam"},
		{"an interface", newLink().program(), delegatetest.Config{Stdin: linkStdin("")}, "main"},
		{"behind others only", newLink("needs prevResult").program(), delegatetest.Config{Stdin: linkStdin("")}, "chained"},
		{"behind others, too", newLink("changes").program(), delegatetest.Config{Stdin: linkStdin("")}, "chained"},
		{"prevResult in the configuration", newLink("changes").program(), delegatetest.Config{Stdin: linkStdin(behindAnother)}, "chained"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			kind, _, err := delegatetest.Findings(t.Context(), tt.plugin, tt.conf)
			nodetest.OK(t, err)
			if kind.Name != tt.want || kind.Why == "" {
				t.Errorf("taken for %q, because %s; want %q", kind.Name, kind.Why, tt.want)
			}
		})
	}
}

// newLink returns a main plugin that prints an interface, or a chained one.
func newLink(flaws ...string) callbacks {
	return func(_ context.Context, _ invoke.Exec, _ []string, stdout io.Writer) skel.CNIFuncs {
		nothing := func(*skel.CmdArgs) error { return nil }
		add := func(args *skel.CmdArgs) error {
			var conf struct {
				CNIVersion string
				PrevResult json.RawMessage
			}
			if err := json.Unmarshal(args.StdinData, &conf); err != nil {
				return err
			}
			result := fmt.Sprintf(`{"cniVersion":%q,"interfaces":[{"name":%q,"sandbox":%q}]}`, conf.CNIVersion, args.IfName, args.Netns)
			switch {
			case conf.PrevResult != nil && !slices.Contains(flaws, "drops prevResult"):
				result = string(conf.PrevResult)
				if slices.Contains(flaws, "adds an interface") {
					result = strings.Replace(result, `"interfaces":[`, `"interfaces":[{"name":"tap0"},`, 1)
					result = strings.Replace(result, `"interface":0`, `"interface":1`, 1)
				}
			case conf.PrevResult == nil && slices.Contains(flaws, "needs prevResult"):
				return errors.New("no prevResult")
			case slices.Contains(flaws, "changes"):
				result = fmt.Sprintf(`{"cniVersion":%q}`, conf.CNIVersion)
			}
			_, err := io.WriteString(stdout, result)
			return err
		}
		del := nothing
		if slices.Contains(flaws, "deletes behind others only") {
			del = func(args *skel.CmdArgs) error {
				if !strings.Contains(string(args.StdinData), `"prevResult"`) {
					return errors.New("no prevResult")
				}
				return nil
			}
		}
		return skel.CNIFuncs{Add: add, Check: nothing, Del: del, GC: nothing, Status: nothing}
	}
}

// behindAnother is a key of the configuration of a plugin for chains.
const behindAnother = `,"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"198.51.100.7/24","interface":0}]}`

// linkStdin configures a link, with more keys.
func linkStdin(more string) func(string) string {
	return func(string) string { return `{"type":"link"` + more + `}` }
}

// A plugin for chains gets a prevResult, also one that could stand alone.
func TestEachFlawOfAChainedPluginFailsItsCheckAndNoOther(t *testing.T) {
	t.Parallel()
	for flaw, fails := range map[string]string{
		"":                           "",
		"adds an interface":          "",
		"drops prevResult":           "chain",
		"deletes behind others only": "del-bare",
	} {
		t.Run(flaw, func(t *testing.T) {
			t.Parallel()
			flaws := []string{flaw}
			if flaw != "adds an interface" {
				flaws = append(flaws, "needs prevResult")
			}
			check(t, newLink(flaws...).program(), delegatetest.Config{Stdin: linkStdin(behindAnother)}, strings.Fields(fails)...)
		})
	}
}
