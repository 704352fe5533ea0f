package runtimes

import (
	"context"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sync makes one attempt to let the pod run in one sandbox, or in none. It removes the
// sandboxes of earlier attempts and those that do not run, as the kubelet does.
func (p *pod) sync(wanted bool) error {
	ctx := context.WithoutCancel(p.n.t.Context())
	got, err := p.n.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{
		Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{podLabel: p.name()}},
	})
	if err != nil {
		return err
	}
	p.id = ""
	for _, s := range got.GetItems() {
		if wanted && p.id == "" && s.GetState() == cri.PodSandboxState_SANDBOX_READY {
			p.id = s.GetId()
			continue
		}
		if _, err := p.n.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.GetId()}); err != nil {
			return err
		}
		if _, err := p.n.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.GetId()}); err != nil {
			return err
		}
	}
	if !wanted || p.id != "" {
		return nil
	}
	p.config.Metadata.Attempt++
	return p.try()
}

// settle repeats sync until it succeeds.
func (p *pod) settle(wanted bool) {
	p.n.t.Helper()
	var last error
	eventually(p.n.t, func() bool {
		last = p.sync(wanted)
		return last == nil
	}, &last)
	if wanted {
		p.look()
	}
}
