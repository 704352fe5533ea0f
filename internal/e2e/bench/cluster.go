//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// definitions is the number of NetworkAttachmentDefinitions in the cluster.
const definitions = 1000

// rivals are the daemons, by the policy for the status of pods. The others are compared
// with the first.
var rivals = []string{"none", "async", "wait"} //nolint:gochecknoglobals // a table

// cluster measures multinet-shim and multinetd, with Kubernetes and without. The API server
// is another process.
func (r *rig) cluster(ctx context.Context, w io.Writer) (err error) {
	if r.crowd == 0 {
		return nil
	}
	runtime.LockOSThread() // see process
	defer runtime.UnlockOSThread()
	a, err := r.startAPI(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	if err := r.define(a); err != nil {
		return err
	}
	if err := r.thick(ctx, w, a); err != nil {
		return err
	}
	if err := r.policies(ctx, w, a); err != nil {
		return err
	}
	return r.crowds(ctx, w, a)
}

// define makes the definitions: for the API server and, as far as they are selected, as
// files for the daemon without Kubernetes.
func (r *rig) define(a *api) error {
	dir := r.file("net.d", "bench")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	kinds := r.kinds()
	for _, kind := range kinds {
		network := r.delegates(kind, 2)[1]
		network["cniVersion"], network["name"] = "1.1.0", definition(kind)
		text, err := json.Marshal(network)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, definition(kind)+".conf"), text, 0o600); err != nil {
			return err
		}
		if _, err := a.ask("definition", definition(kind), string(text)); err != nil {
			return err
		}
	}
	for i := len(kinds); i < definitions; i++ {
		text := fmt.Sprintf(`{"cniVersion":"1.1.0","plugins":[{"type":"macvlan","master":"eth%d",`+
			`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.%d.%d.0/24"}]]}}]}`, i%8, i/250, i%250)
		if _, err := a.ask("definition", fmt.Sprintf("net-%d", i), text); err != nil {
			return err
		}
	}
	return nil
}

// definition returns the name of the definition of a kind of delegates.
func definition(kind string) string { return strings.ReplaceAll(kind, "+", ".") }

// member returns a new pod that the cluster has too.
func (r *rig) member(a *api) (pod, error) {
	p, err := r.pod()
	if err != nil {
		return p, err
	}
	uid, err := a.ask("pod", p.id)
	p.args = "K8S_POD_NAMESPACE=bench;K8S_POD_NAME=" + p.id + ";K8S_POD_INFRA_CONTAINER_ID=" + p.id + ";K8S_POD_UID=" + uid
	return p, err
}

// annotated are the keys of the shim for a pod that selects one network of a kind.
func (r *rig) annotated(kind string) object {
	return object{
		"delegates": r.delegates(kind, 1),
		"runtimeConfig": object{"io.kubernetes.cri.pod-annotations": object{
			"k8s.v1.cni.cncf.io/networks": definition(kind), "kubernetes.io/config.source": "api",
		}},
	}
}

// rival starts a daemon, and returns how long that took until it was ready, and until it
// knew the cluster.
func (r *rig) rival(ctx context.Context, a *api, program, policy string, keys object) (d *daemon, ready, synced time.Duration, err error) {
	all := object{}
	if policy != rivals[0] {
		all = object{"kubeconfig": filepath.Join(a.dir, "kubeconfig"), "nodeName": "n1", "statusPolicy": policy}
	}
	maps.Copy(all, keys)
	start := time.Now()
	if d, ready, err = r.startDaemon(ctx, program, policy, all); err != nil || policy == rivals[0] {
		return d, ready, 0, err
	}
	want := 1.0
	if all["annotations"] == "api" {
		want = 2 // with the pods
	}
	err = until(ctx, "the daemon knows the cluster", func() (bool, error) {
		parts, err := d.metric(ctx, "multinetd_view_synced")
		return parts == want, err
	})
	if err != nil {
		return nil, 0, 0, errors.Join(err, d.stop())
	}
	return d, ready, time.Since(start), nil
}
