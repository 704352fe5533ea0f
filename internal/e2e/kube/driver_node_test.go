package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/internal/e2e/kube/played"
	"github.com/metacni/metacni/internal/e2e/kube/server"
)

// claimDriver is the driver of the manifests, whose policies allow no other one.
const claimDriver = "multinetd.metacni.io"

// A driverNode is a node whose multinetd is a driver for ResourceClaims. The test is the
// scheduler and the kubelet.
type driverNode struct {
	*node
	scheduler played.Scheduler
	kubelet   *dratest.Kubelet
}

// newDriver starts multinetd on a node that publishes the devices shared, shared2 and
// single, of which single is exclusive. Its DeviceClass has no configuration. The definitions
// blue, green and red are those of its bridges 1, 2 and 5. keys are added to the daemon's file.
func newDriver(t *testing.T, keys object) *driverNode {
	t.Helper()
	n := newIdleDriver(t, keys)
	n.begin()
	return n
}

// begin starts the daemon with all rights, and registers its driver.
func (n *driverNode) begin() {
	n.t.Helper()
	n.grantClaims(allClaimRights)
	n.ready()
	n.published("shared", "shared2", "single")
	n.register()
}

// newIdleDriver is newDriver without the rights for claims and without a daemon.
func newIdleDriver(t *testing.T, keys object) *driverNode {
	t.Helper()
	s := world(t).Server
	client, err := played.Client(s.Admin())
	if err != nil {
		t.Fatal(err)
	}
	n := &driverNode{node: newNode(t, s, nil), scheduler: played.Scheduler{Client: client, Driver: claimDriver}}
	n.keys["binDir"], n.keys["kubeletDir"] = n.file("bin"), n.file("kubelet")
	n.keys["dra"] = object{"driver": claimDriver, "allowedTypes": []string{"bridge", "host-local", "watched"}, "networks": []object{
		{"device": "shared", "network": n.namespace + "/blue", "attributes": object{"rack": "r1"}},
		{"device": "shared2", "network": n.namespace + "/green"},
		{"device": "single", "network": n.namespace + "/red", "exclusive": true},
	}}
	maps.Copy(n.keys, keys)
	if err := os.MkdirAll(n.file("kubelet/plugins_registry"), 0o700); err != nil {
		t.Fatal(err)
	}
	n.plugins()
	n.define(n.namespace, "blue", 1)
	n.define(n.namespace, "green", 2)
	n.define(n.namespace, "red", 5)
	if err := n.scheduler.Class(t.Context(), n.class()); err != nil {
		t.Fatal(err)
	}
	return n
}

// class returns the name of the DeviceClass of the test.
func (n *driverNode) class() string { return n.namespace }

// plugins makes a directory of plugins. That of type watched is a bridge that writes what it is
// given to a file. It hangs as long as there is a file hold-COMMAND, and fails as long as there
// is a file fail-COMMAND.
func (n *driverNode) plugins() {
	n.t.Helper()
	programs, err := filepath.Glob(bin("*"))
	if err != nil {
		n.t.Fatal(err)
	}
	if err := os.Mkdir(n.file("bin"), 0o700); err != nil {
		n.t.Fatal(err)
	}
	for _, p := range programs {
		if err := os.Symlink(p, n.file("bin", filepath.Base(p))); err != nil {
			n.t.Fatal(err)
		}
	}
	n.write([]byte(`#!/bin/sh
cd `+n.dir+`
stdin=given/$CNI_COMMAND-$CNI_CONTAINERID-$CNI_IFNAME
cat > $stdin
if [ -e hold-$CNI_COMMAND ]; then
	echo $$ > held.tmp && mv held.tmp held-$CNI_COMMAND
	while [ -e hold-$CNI_COMMAND ]; do sleep 0.02; done
fi
if [ -e fail-$CNI_COMMAND ]; then
	echo '{"cniVersion": "1.1.0", "code": 100, "msg": "out of luck"}'
	exit 1
fi
exec bin/bridge < $stdin
`), "bin/watched")
	if err := os.Mkdir(n.file("given"), 0o700); err != nil {
		n.t.Fatal(err)
	}
}

// watched returns the configuration of the node's i'th bridge for the plugin watched.
func (n *driverNode) watched(i int) object {
	network := n.bridge(i)
	network["cniVersion"], network["type"], network["name"] = "1.1.0", "watched", fmt.Sprintf("watched%d", i)
	return network
}

// set makes a file that makes the plugin watched hang or fail, and returns what removes it.
func (n *driverNode) set(file string) (unset func()) {
	n.t.Helper()
	n.write(nil, file)
	unset = func() { _ = os.Remove(n.file(file)) }
	n.t.Cleanup(unset) // a plugin that hangs ends with the test
	return unset
}

// held waits until the plugin watched hangs. ended waits until that plugin has ended.
func (n *driverNode) held(command string) (ended func()) {
	n.t.Helper()
	var process []byte
	eventually(n.t, func() (held bool) {
		var err error
		process, err = os.ReadFile(n.file("held-" + command))
		return err == nil
	})
	return func() {
		n.t.Helper()
		eventually(n.t, func() bool {
			_, err := os.Stat(filepath.Join("/proc", strings.TrimSpace(string(process))))
			return err != nil
		})
	}
}

// The rights of the component of the manifests, and those without the right that API servers
// require since 1.36.
const (
	allClaimRights = "dra-all"
	oldClaimRights = "dra-old"
)

var componentRights struct {
	sync.Once
	ok bool
}

// grantClaims gives the daemon the rights of a role, under the policies of the component.
func (n *driverNode) grantClaims(role string) {
	n.t.Helper()
	componentRights.Do(func() {
		var shipped rbacv1.ClusterRole
		for document := range strings.SplitSeq(n.rendered("dra"), "---\n") {
			switch {
			case strings.Contains(document, "\nkind: ClusterRole\n"):
				text := n.Kubectl(n.t, document, "create", "--dry-run=client", "-o", "json", "-f", "-")
				if err := json.Unmarshal([]byte(text), &shipped); err != nil {
					n.t.Fatal(err)
				}
			case strings.Contains(document, "\nkind: ValidatingAdmissionPolicy"):
				n.Kubectl(n.t, document, "apply", "-f", "-")
			}
		}
		all := rbacv1.ClusterRole{TypeMeta: shipped.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: allClaimRights}, Rules: shipped.Rules}
		old := all
		old.Name = oldClaimRights
		old.Rules = slices.DeleteFunc(slices.Clone(all.Rules), func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Resources, "resourceclaims/driver")
		})
		if len(old.Rules) != len(all.Rules)-1 {
			n.t.Fatalf("the component has %d rules for resourceclaims/driver, want one", len(all.Rules)-len(old.Rules))
		}
		for _, role := range []rbacv1.ClusterRole{all, old} {
			text, err := json.Marshal(role)
			if err != nil {
				n.t.Fatal(err)
			}
			n.Kubectl(n.t, string(text), "create", "-f", "-")
		}
		componentRights.ok = true
	})
	if !componentRights.ok {
		n.t.Fatal("another test could not make the roles")
	}
	n.grant(role)
}

// rendered returns the manifests of multinetd with a component.
func (n *driverNode) rendered(component string) string {
	n.t.Helper()
	dir := n.t.TempDir()
	if err := server.Kustomize(dir, component); err != nil {
		n.t.Fatal(err)
	}
	return n.Kubectl(n.t, "", "kustomize", dir)
}

// published waits until the scheduler knows exactly these devices of the node.
func (n *driverNode) published(names ...string) (devices []resourcev1.Device) {
	n.t.Helper()
	eventually(n.t, func() bool {
		var err error
		if devices, err = n.scheduler.Devices(n.t.Context(), n.name); err != nil {
			n.t.Fatal(err)
		}
		return slices.EqualFunc(devices, names, func(d resourcev1.Device, name string) bool { return d.Name == name })
	})
	return devices
}

// register registers the driver with the kubelet.
func (n *driverNode) register() {
	n.t.Helper()
	eventually(n.t, func() bool {
		k, err := dratest.Register(n.t.Context(), n.file("kubelet/plugins_registry", claimDriver+"-reg.sock"), "/")
		if err == nil {
			n.kubelet = k
			n.t.Cleanup(func() { _ = k.Close() })
		}
		return err == nil
	})
}

// restart kills the daemon and starts another one.
func (n *driverNode) restart() {
	n.t.Helper()
	n.kill()
	n.ready()
	n.register()
}
