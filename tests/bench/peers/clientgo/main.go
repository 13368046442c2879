// A controller on client-go, the peer of the benchmarks: a shared informer and a workqueue.
//
// Without a database the queue holds keys, and a worker looks each object up. With a database the queue holds each
// version, and a worker inserts it in a transaction of its own. DATABASE is DRIVER:ADDRESS with the driver sqlite3,
// postgres or mysql; the tag `databases` compiles the drivers.
//
// The program prints `listed` when its handlers have seen JOBS objects. It ends when they have seen UPDATES more and the
// queue is empty; then it prints the most memory that it had, in KiB. `cargo xtask bench` builds it, and go.mod pins
// every version.
package main

import (
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// version is what the queue holds where there is a database. No two are equal, so the queue merges none.
type version struct {
	key, resourceVersion, status string
}

const (
	// As durable as Kubewitness writes SQLite. Servers are durable by their own settings.
	durable = "?_journal_mode=WAL&_synchronous=FULL"
	table   = "CREATE TABLE states (object VARCHAR(255) NOT NULL, version VARCHAR(64) NOT NULL, status VARCHAR(255) NOT NULL, UNIQUE (version, object))"
	insert  = "INSERT INTO states (object, version, status) VALUES "
)

func main() {
	if len(os.Args) != 4 && len(os.Args) != 5 {
		fail(fmt.Errorf("usage: %s SERVER JOBS UPDATES [DATABASE]", os.Args[0]))
	}
	jobs, err := strconv.ParseInt(os.Args[2], 10, 64)
	fail(err)
	updates, err := strconv.ParseInt(os.Args[3], 10, 64)
	fail(err)
	var statement *sql.Stmt
	if len(os.Args) == 5 {
		statement = open(os.Args[4])
	}

	queue := workqueue.NewTyped[any]()
	var seen atomic.Int64
	enqueue := func(object any) {
		queue.Add(item(object.(*batchv1.Job), statement != nil))
		switch seen.Add(1) {
		case jobs:
			fmt.Println("listed")
		case jobs + updates:
			// The queue hands out what it still holds. Then its worker ends.
			queue.ShutDown()
		}
	}
	informer := cache.NewSharedIndexInformer(
		cache.NewListWatchFromClient(connect(os.Args[1]), "jobs", metav1.NamespaceAll, fields.Everything()),
		&batchv1.Job{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, object any) { enqueue(object) },
	})
	fail(err)
	go informer.Run(make(chan struct{}))
	work(queue, informer.GetIndexer(), statement)
	fmt.Println(peak())
}

func connect(server string) *rest.RESTClient {
	scheme := runtime.NewScheme()
	fail(batchv1.AddToScheme(scheme))
	metav1.AddToGroupVersion(scheme, batchv1.SchemeGroupVersion)
	client, err := rest.RESTClientFor(&rest.Config{
		Host:    server,
		APIPath: "/apis",
		// The benchmark measures how fast it reads, so it has no limit of its own.
		QPS: -1,
		ContentConfig: rest.ContentConfig{
			GroupVersion:         &batchv1.SchemeGroupVersion,
			NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
			ContentType:          "application/json",
		},
	})
	fail(err)
	return client
}

func item(job *batchv1.Job, hasDatabase bool) any {
	key, err := cache.MetaNamespaceKeyFunc(job)
	fail(err)
	if !hasDatabase {
		return key
	}
	status := fmt.Sprintf("%d/%d/%d", job.Status.Active, job.Status.Succeeded, job.Status.Failed)
	return version{key, job.ResourceVersion, status}
}

func work(queue workqueue.TypedInterface[any], store cache.Indexer, statement *sql.Stmt) {
	for {
		item, ended := queue.Get()
		if ended {
			return
		}
		switch item := item.(type) {
		case version:
			_, err := statement.Exec(item.key, item.resourceVersion, item.status)
			fail(err)
		case string:
			_, _, err := store.GetByKey(item)
			fail(err)
		}
		queue.Done(item)
	}
}

func open(name string) *sql.Stmt {
	driver, address, _ := strings.Cut(name, ":")
	places := "(?, ?, ?)"
	switch driver {
	case "sqlite3":
		address = "file:" + address + durable
	case "postgres":
		places = "($1, $2, $3)"
	}
	database, err := sql.Open(driver, address)
	fail(err)
	database.SetMaxOpenConns(1)
	_, err = database.Exec(table)
	fail(err)
	statement, err := database.Prepare(insert + places)
	fail(err)
	return statement
}

// peak returns the most memory that this process had, in KiB.
func peak() string {
	status, err := os.ReadFile("/proc/self/status")
	fail(err)
	_, rest, found := strings.Cut(string(status), "VmHWM:")
	words := strings.Fields(rest)
	if !found || len(words) == 0 {
		fail(fmt.Errorf("/proc/self/status has no VmHWM"))
	}
	return words[0]
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "client-go peer:", err)
		os.Exit(1)
	}
}
