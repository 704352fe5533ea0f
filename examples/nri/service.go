package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// cniVersion is put into a network of a user that has no version.
const cniVersion = "1.0.0"

// errTaken says that another plugin has the state directory.
var errTaken = errors.New("in use by another nri: each needs a directory of its own")

// A service is what the plugin works with, from the first Configure until Run ends.
// Goroutines may share it.
type service struct {
	conf Config // of the plugin, with the keys of the runtime
	log  *slog.Logger
	held *scratch.Lock // on conf.StateDir
	life *lifecycle.Manager

	rules  nad.Rules   // for networks of users
	view   *kube.View  // of the cluster; nil without ResourceClaims
	driver *dra.Driver // nil without ResourceClaims
}

// open locks the state directory, and then starts the DRA driver if there is one. Two plugins
// with the same directory would detach each other's pods. If another plugin has it, open waits
// as long as the runtime waits for an answer, because that plugin may be about to end.
func (p *Plugin) open(ctx context.Context, conf Config) (*service, error) {
	waiting, cancel := context.WithDeadline(ctx, conf.answerBy(ctx))
	defer cancel()
	held, err := scratch.Store[struct{}]{Dir: conf.StateDir}.Lock(waiting, network)
	if err != nil {
		if ctx.Err() == nil && waiting.Err() != nil {
			err = fmt.Errorf("nri: stateDir %q is %w", conf.StateDir, errTaken)
		}
		return nil, err
	}
	system := plugin.System{
		Exec: p.Exec, Env: p.Env, InterfaceNames: p.InterfaceNames, Observer: observe, Logger: p.Logger,
		UndoTimeout: 10 * time.Second, // nobody ends the process when a call of the runtime has ended
	}
	o := &service{conf: conf, log: p.Logger, held: held, life: system.NewManager(conf.StateDir, "", []string{conf.BinDir})}
	if conf.DRA.Driver != "" {
		err = o.startDriver(context.WithoutCancel(ctx)) // close ends it
	}
	if err != nil {
		o.close()
		return nil, fmt.Errorf("nri: dra: %w", err)
	}
	return o, nil
}

// startDriver starts the DRA driver. It does not wait for the API server, nor for a kubelet that
// has never run on the node.
func (o *service) startDriver(ctx context.Context) (err error) {
	conf := o.conf
	policy := nad.Policy{Isolation: conf.NamespaceIsolation}
	policy.GlobalNamespaces, _ = nad.ParseNamespaces(conf.GlobalNamespaces) // complete has checked it
	o.rules = nad.Rules{CNIVersion: cniVersion, Own: multinet.OwnTypes(), Allowed: conf.AllowedTypes}
	if !conf.NamespaceIsolation {
		o.rules.ConfDir = os.DirFS(conf.ConfDir)
	}
	if o.view, err = kube.Open(ctx, kube.Config{Kubeconfig: conf.Kubeconfig, UserAgent: "metacni-nri", Logger: o.log}); err != nil {
		return err
	}
	config := dra.Config{
		Name: conf.DRA.Driver, Node: conf.NodeName, View: o.view,
		Dir:    filepath.Join(conf.StateDir, "claims"),
		Policy: policy, Rules: o.rules, AllowedTypes: conf.DRA.AllowedTypes,
		Records: o.records, KubeletDir: conf.KubeletDir,
		Networks: conf.DRA.Networks, Network: o.offered, OfferInterval: time.Duration(conf.Sweep),
		Logger: o.log,
	}
	if conf.DRA.Metadata {
		config.CDIDir = cmp.Or(conf.DRA.CDIDir, kubeletplugin.DefaultCDIDir)
	}
	if o.driver, err = dra.Start(ctx, config); err != nil {
		return err
	}
	if err := o.driver.Err(); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// close stops the DRA driver and unlocks the state directory. Prepared claims stay, for the next
// plugin.
func (o *service) close() {
	o.driver.Stop()
	if o.view != nil {
		o.view.Close()
	}
	if err := o.held.Unlock(); err != nil {
		o.log.Warn("unlocking the state directory failed", slog.Any("err", err))
	}
}
