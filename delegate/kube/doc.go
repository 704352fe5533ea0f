// Package kube is what a meta-plugin's daemon needs of a Kubernetes API server, without
// ever waiting for it: definitions of networks and pods out of a cache, the status of
// pods, and Events.
//
// [Open] starts a [View] of the cluster and returns at once. The View watches
// NetworkAttachmentDefinitions and, where they are asked for, the pods of one node:
//
//	view, err := kube.Open(ctx, kube.Config{Kubeconfig: file, Logger: logger})
//	defer view.Close()
//	definition, err := view.Definition(ctx, nad.Ref{Namespace: "default", Name: "storage"})
//
// An API server that cannot be reached is no reason to stop: the View goes on trying,
// answers from what it knows, and fails with CNI code 11 (try again later) where it
// knows nothing. It never takes "not seen yet" for "does not exist".
//
// Nothing in this package is global, and every goroutine it starts ends before
// [View.Close] returns.
package kube
