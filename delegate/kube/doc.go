// Package kube connects the daemon of a meta-plugin to a Kubernetes cluster. It caches
// definitions of networks, and pods; it writes the status of pods, and Events. The daemon
// works while the API server is away.
//
// [Open] starts a [View] of the cluster and returns at once. The View watches
// NetworkAttachmentDefinitions and, if they are asked for, the pods of one node:
//
//	view, err := kube.Open(ctx, kube.Config{Kubeconfig: file, Logger: logger})
//	defer view.Close()
//	definition, err := view.Definition(ctx, nad.Ref{Namespace: "default", Name: "storage"})
//
// While the API server cannot be reached, the View answers from its cache, keeps trying, and
// fails with CNI code 11 (try again later) for objects that it does not know. An object is
// "not found" only if the API server has said so.
//
// # The way of the data
//
// All requests go through one transport, which reads the credentials again when they change
// (transport.go). For each resource a source runs a watch (watch.go) and fills a store with the
// part of each object that matters (store.go, object.go). Look-ups wait for the store and then
// make one request (view.go, definition.go, pod.go). A mirror copies the store of definitions to
// files (mirror.go).
//
// In the other direction a [StatusWriter] queues pods whose records have changed (status.go),
// computes their annotation, patches it, restores what others overwrite, and decides from the
// answer when to try again (write.go). [Events] have a queue of their own (events.go).
//
// Nothing in this package is global. The goroutines that Open starts end before [View.Close]
// returns, and those of a StatusWriter soon afterwards.
package kube
