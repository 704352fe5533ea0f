//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/status"
)

// story runs the demo on the private host. It fails if something is not as it prints.
func story(ctx context.Context, std stdio, bin, who string) error {
	if err := host.Setup(); err != nil {
		return fmt.Errorf("no private host: %w", err)
	}
	c, err := newCluster(bin, std)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "A private host, %s. It is gone when the lab ends.\n", who)
	wanted := "storage,fast@fast0"
	if c.macvlan != nil {
		fmt.Fprintf(c.out, "%v: the network fast is left out.\n", c.macvlan)
		wanted = "storage"
	}
	attached, err := c.attach(ctx, wanted)
	if err == nil {
		err = c.reach(ctx, attached)
	}
	if err == nil {
		err = c.fail(ctx)
	}
	if err == nil {
		err = c.detach(ctx, attached)
	}
	return err
}

// attach attaches a container to the networks that its pod selects.
func (c *cluster) attach(ctx context.Context, wanted string) (delegate.Attached, error) {
	pod, err := c.pod("lab1", wanted)
	if err != nil {
		return delegate.Attached{}, err
	}
	fmt.Fprintf(c.out, "\n1. ADD lab1 eth0: its pod is annotated %s: %s\n\n", networks, wanted)
	start := time.Now()
	attached, err := c.runtime.Add(ctx, pod)
	if err != nil {
		return attached, err
	}
	took := time.Since(start)
	if err := table(c.out, pod.NetNS); err != nil {
		return attached, err
	}
	fmt.Fprintf(c.out, "\n   attached in %d ms; `multinet status lab1` says:\n\n", took.Milliseconds())
	// The runtime receives only the result of the first network.
	text, err := exec.CommandContext(ctx, filepath.Join(c.bin, "multinet"), "status", pod.ContainerID).Output()
	if err != nil {
		return attached, fmt.Errorf("multinet status %s: %w", pod.ContainerID, err)
	}
	fmt.Fprintf(c.out, "    %s\n", bytes.ReplaceAll(bytes.TrimSpace(text), []byte("\n"), []byte("\n    ")))
	return attached, nil
}

// reach asks the gateway from the container.
func (c *cluster) reach(ctx context.Context, a delegate.Attached) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	gateway := netip.MustParseAddr("10.244.1.1")
	took, err := host.Reach(ctx, a.NetNS, gateway)
	if err == nil {
		fmt.Fprintf(c.out, "\n2. From lab1, the gateway %s answers after %d µs\n", gateway, took.Microseconds())
	}
	return err
}

// fail attaches a second container, whose last network cannot work.
func (c *cluster) fail(ctx context.Context) error {
	const wanted = "storage,broken"
	fmt.Fprintf(c.out, "\n3. ADD lab2 eth0, annotated %s: the last network's parent interface does not exist\n\n", wanted)
	before, err := look("")
	if err != nil {
		return err
	}
	pod, err := c.pod("lab2", wanted)
	if err != nil {
		return err
	}
	_, err = c.runtime.Add(ctx, pod)
	if err == nil {
		return errors.New("lab2 has been attached")
	}
	fmt.Fprintf(c.out, "    CNI code %d: %s\n\n   What was attached has been detached again. What is left is lab1's:\n\n", status.Code(err), err)
	after, err := look(pod.NetNS)
	if err != nil {
		return err
	}
	after.print(c.out, "lab2")
	named := strings.Contains(strings.Join(append(after.leases, after.records...), "\n"), "lab2")
	if len(after.interfaces) > 0 || len(after.host) != len(before.host) || named {
		return errors.New("something of lab2 is left")
	}
	return host.RemoveNS(pod.NetNS)
}

// detach does what containerd does: a DEL when it stops the pod, and a second DEL
// without namespace and result when it removes the pod.
func (c *cluster) detach(ctx context.Context, a delegate.Attached) error {
	fmt.Fprintf(c.out, "\n4. DEL lab1, and DEL again without its namespace, as containerd does\n\n")
	if err := c.runtime.Del(ctx, a); err != nil {
		return err
	}
	left, err := look(a.NetNS)
	if err == nil {
		err = host.RemoveNS(a.NetNS)
	}
	if err != nil {
		return err
	}
	a.NetNS, a.Result = "", nil
	if err := c.runtime.Del(ctx, a); err != nil {
		return err
	}
	left.print(c.out, "lab1")
	if n := len(left.interfaces) + len(left.host) + len(left.leases) + len(left.records); n > 0 {
		return fmt.Errorf("%d things are left", n)
	}
	fmt.Fprintln(c.out, "\nNothing is left.")
	return nil
}
