package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/multinet/cluster"
	"github.com/metacni/metacni/examples/multinet/doctor"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
)

// doctorCommand is the first argument of the program that makes it look at the node.
const doctorCommand = "doctor"

// runDoctor prints what hinders the daemon on the node. It has the command line and the
// configuration of the daemon. Without these it does not know where to look.
func runDoctor(ctx context.Context, args []string, defaultFile string, environ []string, stdout io.Writer) error {
	form := "table"
	conf, err := readConfig(args, defaultFile, stdout, func(f *flag.FlagSet) {
		f.StringVar(&form, "o", form, "`form` of the output: table or json")
	})
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case errors.Is(err, errMisused):
		return err
	case form != "table" && form != "json":
		return fmt.Errorf("-o %s: want table or json: %w", form, errMisused)
	case err == nil:
		err = conf.findCluster(environ, cluster.TokenFile)
	}
	file := cmp.Or(conf.file, defaultFile)
	if err != nil {
		return doctor.Print(stdout, form == "json", []doctor.Finding{{Check: "config", Verdict: doctor.Fatal, Looked: file, Found: err.Error(), Todo: "correct it: multinetd does not start"}})
	}
	findings := []doctor.Finding{{Check: "config", Verdict: doctor.OK, Looked: file, Found: fmt.Sprintf("API server: %s; keys without effect: %q", conf.cluster.Source(), conf.ignored)}}
	if dir := conf.publish.stateDir; dir != conf.stateDir {
		findings = append(findings, doctor.Finding{Check: "config", Verdict: doctor.Problem, Looked: file, Found: fmt.Sprintf("the published network has the cniDir %s, the daemon %s", conf.root().OnNode(dir), conf.root().OnNode(conf.stateDir)), Todo: "set cniDir in the file, not in network"})
	}
	return doctor.Print(stdout, form == "json", append(findings, conf.node().Check(ctx)...))
}

// node returns where things are, for the doctor.
func (c *config) node() doctor.Node {
	m, onNode := c.manager(), c.root().OnNode
	if m == nil {
		template, _ := netconf.Plugin{}.Edit(netconf.Set("type", shimType)) // a string
		m = publish.Manager(publish.ConfDir, filepath.Join(publish.ConfDir, publish.Output), template)
		m.Root = c.ChrootDir
	}
	var request struct{ BinDir string }
	_ = json.Unmarshal(c.publish.request, &request) // it has been checked
	return doctor.Node{
		Publisher: m, StateDir: onNode(cmp.Or(c.publish.stateDir, c.stateDir)),
		BinDir: cmp.Or(onNode(request.BinDir), multinet.DefaultBinDir), CacheDir: cmp.Or(onNode(c.publish.CacheDir), multinet.DefaultCacheDir),
		SocketDir: c.SocketDir, QueueDir: c.QueueDir,
		Version: plugin.Version(), Daemon: true, Residents: c.resident.on(),
	}
}
